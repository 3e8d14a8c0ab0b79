"""Fields that take a value of their own JSON type only, and the parser that cleans text before any of them sees it.

DRF's own fields turn a number into text, "5" into a number and an int into a UUID; here the wrong type is refused with
the field named, since a client that sends one has a bug that it should hear of.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

TITLE = 1_000
TEXT = 1_000_000
MAX_INT = 2**31 - 1
_UNSTORABLE = re.compile("[\ud800-\udfff]")


def clean(value: Any) -> Any:
    """JSON without what PostgreSQL cannot store: NUL is removed, half a surrogate pair becomes U+FFFD."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("�", value.replace("\x00", ""))
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value


class CleanJSONParser(JSONParser):
    """JSON of bounded depth, cleaned. A body that is empty or `null` counts as `{}`: the command line sends those."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        try:
            data = clean(super().parse(stream, media_type, parser_context))
        except RecursionError:
            raise ParseError("JSON is nested too deeply") from None
        return {} if data is None else data


class Text(serializers.CharField):
    """A string. Surrounding space is kept; blank is allowed unless `blank=False`."""

    def __init__(self, *, blank: bool = True, max_length: int = TEXT, **options: Any) -> None:
        super().__init__(allow_blank=blank, trim_whitespace=False, max_length=max_length, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("must be a string")
        text = super().to_internal_value(data)
        if not self.allow_blank and not text.strip():
            self.fail("blank")
        return str(text)


class Whole(serializers.IntegerField):
    """A whole number."""

    def __init__(self, *, min_value: int = -MAX_INT, max_value: int = MAX_INT, **options: Any) -> None:
        super().__init__(min_value=min_value, max_value=max_value, **options)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            raise serializers.ValidationError("must be a whole number")
        return int(super().to_internal_value(data))


class Number(serializers.FloatField):
    """A number."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError("must be a number")
        if abs(data) > 1e300:
            raise serializers.ValidationError("is too large")
        return float(data)


class Flag(serializers.BooleanField):
    """`true` or `false`."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError("must be true or false")
        return data


class Ident(serializers.UUIDField):
    """A UUID as text."""

    def to_internal_value(self, data: Any) -> UUID:
        if not isinstance(data, str):
            raise serializers.ValidationError("must be a UUID")
        try:
            return UUID(data)
        except ValueError:
            raise serializers.ValidationError("must be a UUID") from None


class Day(serializers.DateField):
    """A date `2026-01-31`; a timestamp is taken for its day."""

    def to_internal_value(self, value: Any) -> date:
        if not isinstance(value, str):
            raise serializers.ValidationError("must be a date like 2026-01-31")
        try:
            return date.fromisoformat(value[:10])
        except ValueError:
            raise serializers.ValidationError("must be a date like 2026-01-31") from None


class OneOf(Text):
    """One of some words."""

    def __init__(self, words: tuple[str, ...], **options: Any) -> None:
        self.words = words
        super().__init__(max_length=64, **options)

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        if text not in self.words and not (text == "" and self.allow_blank):
            raise serializers.ValidationError(f"must be one of {', '.join(self.words)}")
        return text


class Texts(serializers.ListField):
    """A list of strings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=Text(max_length=10_000), max_length=200, **options)

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list):
            raise serializers.ValidationError("must be a list of strings")
        return list(super().to_internal_value(data))


class Mapping(serializers.DictField):
    """An object."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError("must be an object")
        return dict(super().to_internal_value(data))
