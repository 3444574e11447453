"""Values as the JSON in the store: a round trip changes nothing, and digests are computed from its bytes."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer, model_validator

T = TypeVar("T")

# JSON has no NaN or infinity; a document with one was not written by `dump`.
Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Flat:
    """A value made of several parts, whose JSON holds the fields of all parts at one level."""

    PARTS: ClassVar[tuple[str, ...]]  # the names of the fields that are parts
    STORED: ClassVar[tuple[str, ...]]  # the keys of its JSON, in order
    # Keys that came later, and are written only if there is a value.
    WHERE_USED: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _parted(cls, stored: Any) -> Any:
        return {**stored, **dict.fromkeys(cls.PARTS, stored)} if isinstance(stored, dict) else stored

    @model_serializer(mode="wrap")
    def _flat(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = plain(self)
        for part in self.PARTS:
            fields.update(fields.pop(part))
        later = {name: fields[name] for name in self.WHERE_USED if fields[name] is not None}
        return {name: fields[name] for name in self.STORED} | later


# Adapters are pure but slow to build, 50 ms for all that a sync needs: each is built once, though the tables of a run
# ask for them at the same time.
_adapters: dict[Any, TypeAdapter[Any]] = {}
_building = threading.Lock()


def adapter(kind: Any) -> TypeAdapter[Any]:
    """What turns plain values into this kind and back."""
    found = _adapters.get(kind)
    if found is None:
        with _building:
            found = _adapters.get(kind) or TypeAdapter(kind)
            _adapters[kind] = found
    return found


def dump(value: object) -> bytes:
    """The value as canonical JSON; digests are computed from these bytes."""
    plain = adapter(type(value)).dump_python(value, mode="json", by_alias=True)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def dump_quickly(value: object) -> bytes:
    """The same JSON in a third of the time, but not always the same bytes: some numbers are written differently."""
    return adapter(type(value)).dump_json(value, by_alias=True)


def load(kind: type[T], data: bytes) -> T:
    """The value that `dump` wrote; ValueError if the bytes hold anything else."""
    result: T = adapter(kind).validate_json(data)
    return result


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
