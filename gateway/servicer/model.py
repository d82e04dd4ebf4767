"""ModelService: what the caller's key may use. A model that it has no grant for does not exist for it."""

# ruff: noqa: N802 - the names are the protocol's

import grpc

from evenflow.inference.v1 import model_pb2 as pb
from evenflow.inference.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from gateway.auth import current_principal
from gateway.servicer.check import Check
from gateway.servicer.convert import model_to_pb, tokenizer_to_pb
from gateway.servicer.served_models import ServedModels
from gateway.servicer.validation import model_name

SERVICE = pb.DESCRIPTOR.services_by_name["ModelService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class ModelServicer(ModelServiceServicer):
    """The models that are served now."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def add_to(self, server: grpc.aio.Server) -> None:
        """`server` offers the service."""
        add_ModelServiceServicer_to_server(self, server)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        granted = self._models.granted(current_principal().model_grants)
        return pb.ListModelsResponse(models=[model_to_pb(info) for info in granted])

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        check = Check("name")
        check.require(request.name != "", "must not be empty")
        name = model_name(request.name, check)
        check.finish()
        model = self._models.resolve(name, current_principal().model_grants, "name")
        return pb.GetModelResponse(model=model_to_pb(model.info))

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Context) -> pb.GetTokenizerResponse:
        check = Check("name")
        name = model_name(request.name, check)
        check.finish()
        return tokenizer_to_pb(self._models.resolve(name, current_principal().model_grants, "name").info)
