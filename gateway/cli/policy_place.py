"""A value of a policy file with its place, so that whatever is wrong about it is told with file, line and path."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from gateway.cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """A value of the file, and where it stands."""

    file: Path
    path: str
    node: yaml.Node

    def __str__(self) -> str:
        """`policies.yaml:7: organizations.acme.quota.weight`"""
        return f"{self.file}:{self.node.start_mark.line + 1}: {self.path or 'the file'}"

    def refuse(self, problem: str, hint: str = "") -> UsageError:
        """`policies.yaml:7: organizations.acme.quota.wieght: …`"""
        return UsageError(f"{self}: {problem}", hint)

    def items(self) -> list[tuple[str, "Place"]]:
        """The members of a mapping, each of which is there once; nothing counts as an empty one."""
        if isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:null":
            return []
        if not isinstance(self.node, yaml.MappingNode):
            raise self.refuse("must be a mapping of names to values")
        found: dict[str, Place] = {}
        for key, value in self.node.value:
            name = str(key.value)
            place = Place(self.file, f"{self.path}.{name}" if self.path else name, value)
            if name in found:
                raise Place(self.file, place.path, key).refuse("is there twice")
            found[name] = place
        return list(found.items())

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.refuse("must be a text")
        return str(self.node.value)

    def members(self) -> list["Place"]:
        """The members of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.refuse("must be a list")
        return [Place(self.file, f"{self.path}[{index}]", node) for index, node in enumerate(self.node.value)]

    def below(self) -> list[tuple[str, "Place"]]:
        """Everything inside, by its path in the API's form: a member of a mapping counts as one of a list."""
        if isinstance(self.node, yaml.ScalarNode):
            return []
        is_list = isinstance(self.node, yaml.SequenceNode)
        found = []
        for index, place in enumerate(self.members() if is_list else [place for _, place in self.items()]):
            found.append((f"[{index}]", place))
            named = [] if isinstance(place.node, yaml.ScalarNode) else place.items()
            found += [(f"[{index}].{name}", inner) for name, inner in named]
        return found

    def number(self) -> float:
        value = self._value()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse("must be a number")
        return value

    def whole(self) -> int:
        value = self._value()
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse("must be a whole number")
        return value

    def flag(self) -> bool:
        value = self._value()
        if not isinstance(value, bool):
            raise self.refuse("must be true or false")
        return value

    def _value(self) -> object:
        return yaml.safe_load(self.text()) if isinstance(self.node, yaml.ScalarNode) and not self.node.style else None
