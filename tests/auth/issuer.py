"""An issuer of tokens for one test: its keys, the set it publishes, and the tokens it signs, good and bad."""

import json
import time
from collections import abc

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://login.example.test/"
AUDIENCE = "evenflow"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def jwk(key, key_id: str | None = "one", **fields: object) -> dict[str, object]:
    """The public half of `key`, as a set has it."""
    algorithm = (
        RSAAlgorithm
        if isinstance(key, rsa.RSAPrivateKey)
        else ECAlgorithm
        if isinstance(key, ec.EllipticCurvePrivateKey)
        else OKPAlgorithm
    )
    entry = json.loads(algorithm.to_jwk(key.public_key()))
    entry.pop("key_ops", None)
    return {**entry, **({"kid": key_id} if key_id is not None else {}), "use": "sig", **fields}


def key_set(*keys: dict[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(**changes: object) -> dict[str, object]:
    """Those of a good token; a change to None takes the claim out."""
    now = int(time.time())
    base = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600, "team": "acme/search"}
    return {name: value for name, value in (base | changes).items() if value is not None}


def token(
    payload: abc.Mapping[str, object] | None = None, *, key=RSA_KEY, algorithm: str = "RS256", **headers: object
) -> str:
    """Signed by `key`; the header names the key `one` unless told otherwise."""
    given = {"kid": "one", **headers}
    # Not jwt.encode: it refuses to sign claims that a verifier has to refuse.
    return jwt.PyJWS().encode(
        json.dumps(claims() if payload is None else payload).encode(),
        key,
        algorithm=algorithm,
        headers={name: value for name, value in given.items() if value is not None},
    )


class PublishedKeys:
    """What the issuer's URI answers, and how often it was asked."""

    def __init__(self, document: bytes = b"") -> None:
        self.document = document or key_set(jwk(RSA_KEY), jwk(EC_KEY, "two"), jwk(ED_KEY, "three"))
        self.failure: Exception | None = None
        self.num_calls = 0

    async def __call__(self, uri: str) -> bytes:
        self.num_calls += 1
        if self.failure is not None:
            raise self.failure
        return self.document
