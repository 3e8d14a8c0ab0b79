"""From bytes to a struct: lenient where the daemon protocol says so, exact about what is wrong where it does not.

null and a missing field are the default, unknown fields are ignored, numbers and words stand for each other where that
is unambiguous. NUL characters and lone surrogates, which PostgreSQL cannot store, are taken out of every text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from queue_app.errors import InvalidError

T = TypeVar("T", bound=msgspec.Struct)

_WHERE = re.compile(r"^(?P<what>.*) - at `\$(?P<path>.*)`$", re.DOTALL)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def decode(body: bytes, shape: type[T]) -> T:
    """The body of a request as `shape`. An empty body and `null` are an empty object.

    Raises InvalidError with the path of the field that is wrong, such as `runtimes[0].name`.
    """
    return convert(parse(body), shape)


def decode_report(body: bytes, shape: type[T]) -> tuple[T, list[str]]:
    """The same for a report that must not be refused for a detail, since a refusal throws a run's work away.

    A field that cannot be read is dropped; the names of those come with the struct. Only a body that is no JSON
    object at all is refused.
    """
    value = parse(body)
    dropped: list[str] = []
    while True:
        try:
            return convert(value, shape), dropped
        except InvalidError as error:
            name = re.split(r"[.\[]", error.field or "", maxsplit=1)[0]
            if name not in value:
                raise
            dropped.append(name)
            del value[name]


def parse(body: bytes) -> dict[str, Any]:
    """The body as a JSON object whose texts can be stored."""
    try:
        value = _loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"body: not valid JSON ({error})", field="body", code="malformed_json") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidError("body: must be a JSON object", field="body")
    return value


def convert(value: dict[str, Any], shape: type[T]) -> T:
    """A parsed object as `shape`; raises InvalidError with the path of the field that is wrong."""
    try:
        return msgspec.convert(_without_nulls(value, shape), shape, strict=False)
    except msgspec.ValidationError as error:
        found = _WHERE.match(str(error))
        path = found["path"].lstrip(".") if found else ""
        what = found["what"] if found else str(error)
        raise InvalidError(f"{path or 'body'}: {what[:1].lower()}{what[1:]}", field=path or "body") from None


def _loads(body: bytes) -> Any:
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        # The standard library reads what real clients send: lone surrogates, control characters, broken UTF-8.
        value = json.loads(body.decode("utf-8", "replace"), strict=False, parse_constant=_no_constant)
        return _clean(value)
    return _clean(value) if b"\\u0000" in body else value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub(_in_place_of, value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _in_place_of(found: re.Match[str]) -> str:
    return "" if found.group() == "\x00" else "�"


def clean_text(text: str) -> str:
    """A text without what PostgreSQL cannot store."""
    return _UNSTORABLE.sub(_in_place_of, text)


# --------------------------------------------------------------------------------------------------- null is absent

_Inner = Callable[[Any], Any]


@cache
def _inner_fields(shape: type[msgspec.Struct]) -> dict[str, _Inner | None]:
    """For every field of a struct by its name on the wire: how to clear its value of nulls, if it holds structs."""
    hints = get_type_hints(shape)
    names = zip(shape.__struct_encode_fields__, shape.__struct_fields__, strict=True)
    return {on_wire: _inner(hints[name]) for on_wire, name in names}


def _inner(kind: Any) -> _Inner | None:
    if get_origin(kind) is UnionType:
        (kind,) = (arm for arm in get_args(kind) if arm is not NoneType)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return lambda value: _without_nulls(value, kind)
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        inside = _inner(item) or (lambda value: value)
        return lambda value: [inside(v) for v in value if v is not None] if isinstance(value, list) else value
    return None


def _without_nulls(value: Any, shape: type[msgspec.Struct]) -> Any:
    # Only along declared structs: a null inside free JSON, such as a tool's input, means something.
    if not isinstance(value, dict):
        return value
    fields = _inner_fields(shape)
    kept = {name: item for name, item in value.items() if item is not None and name in fields}
    for name, inside in fields.items():
        if inside is not None and name in kept:
            kept[name] = inside(kept[name])
    return kept
