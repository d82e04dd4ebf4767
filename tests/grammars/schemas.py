"""Random JSON schemas whose documents are short, so that a random model comes to their end."""

import random
from collections import abc

Schema = dict[str, object]
WORDS = ("a", "id", "name", "größe", "x-1", "$v", "list", "ok")


def random_schema(rng: random.Random, depth: int = 0) -> Schema:
    """An object at the top, as OpenAI wants it; nothing in it is without a bound."""
    if depth == 0:
        return _object(rng, depth)
    kinds: list[abc.Callable[[random.Random, int], Schema]] = [_string, _integer, _number, _fixed, _choice]
    if depth < 3:
        kinds += [_object, _array, _any_of]
    return rng.choice(kinds)(rng, depth)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(WORDS, rng.randint(0 if depth else 1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(rng, depth + 1),
        "minItems": least,
        "maxItems": least + rng.randint(0, 1),
    }


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}


def _string(rng: random.Random, _depth: int) -> Schema:
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.randint(0, 6)},
            {"type": "string", "pattern": "^[a-f]{1,4}$"},
            {"type": "string", "format": "date"},
        ]
    )


def _integer(rng: random.Random, _depth: int) -> Schema:
    low = rng.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)}


def _number(rng: random.Random, _depth: int) -> Schema:
    return {"type": "integer", "minimum": 0, "exclusiveMaximum": rng.randint(1, 1000)}


def _fixed(rng: random.Random, _depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null"])}


def _choice(rng: random.Random, _depth: int) -> Schema:
    values: list[object] = ["red", "zwölf", 'a"b', 7, -1, True, None, 2.5]
    return {"enum": rng.sample(values, rng.randint(1, 3))}
