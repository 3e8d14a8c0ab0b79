"""Logging of every process: one clear line a record, one shape for Django, libraries and our own code, no secrets."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog

# Credentials as they appear in text: our own token kinds, bearer headers, passwords inside addresses.
PATTERNS = (
    re.compile(r"\b(m(?:ul|at|dt|cn)_)[A-Za-z0-9_\-]{6,}"),
    re.compile(r"(?i)\b((?:bearer|token|basic)\s+)[A-Za-z0-9._~+/\-]{12,}=*"),
    re.compile(r"\b([a-z][a-z0-9+.\-]*://[^\s:/@]*:)[^\s@/]+(?=@)"),
    re.compile(r"\b((?:sk|ghp|gho|ghs|github_pat|glpat|xox[abp])[-_])[A-Za-z0-9_\-]{10,}"),
)
SECRET_KEYS = re.compile(r"(?i)(token|password|passwd|secret|authorization|cookie|api_?key)")
# Identifiers of a delivery, not credentials: operators search for them.
PLAIN_KEYS = frozenset({"claim_token", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"})

EventDict = MutableMapping[str, Any]

OUTAGE_REMINDER: Final = 60.0
"""Seconds between two lines about one outage that a library repeats at each of its retries."""


class Outage(logging.Filter):
    """Makes one line a minute, without its traceback, of what a library logs at every attempt to reach a server.

    The channel layer does it each second while Redis is away, which is expected and costs latency only.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record goes out; it is shortened if so."""
        message, now = str(record.msg), self._clock()
        if now < self._next.get(message, now):
            return False
        self._next[message] = now + OUTAGE_REMINDER
        if record.exc_info:
            record.msg = f"{message} {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = record.exc_text = None
        return True


def scrub(text: str) -> str:
    """The text with every credential that has a known form replaced by `***`, its kind kept readable."""
    for pattern in PATTERNS:
        text = pattern.sub(r"\1***", text)
    return text


def drop_colour(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """uvicorn sends each message a second time, with terminal colours."""
    event.pop("color_message", None)
    return event


def redact(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """structlog processor: hides values under secret-looking names and credentials inside any text."""
    for key, value in event.items():
        if key.startswith("_"):
            continue  # structlog's own
        if SECRET_KEYS.search(key) and key not in PLAIN_KEYS:
            event[key] = "***"
        elif isinstance(value, str):
            event[key] = scrub(value)
    return event


def _shared() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.UnicodeDecoder(),
    ]


def _renderer(style: str) -> list[Any]:
    last = structlog.processors.JSONRenderer() if style == "json" else _line
    return [structlog.processors.format_exc_info, redact, last]


def _line(_logger: Any, _method: str, event: EventDict) -> str:
    """`12:00:01 INFO  queue_app.claim delivered task=… runtime=…`; a traceback follows on its own lines."""
    clock = str(event.pop("timestamp", ""))[11:19]
    level = str(event.pop("level", "info")).upper()
    name = event.pop("logger", "")
    message = event.pop("event", "")
    trace = event.pop("exception", "")
    pairs = " ".join(f"{key}={value}" for key, value in event.items() if not key.startswith("_"))
    head = f"{clock} {level:<7} {name} {message}{' ' + pairs if pairs else ''}".replace("\n", "\\n")
    return f"{head}\n{trace}" if trace else head


def config(style: str, level: str) -> dict[str, Any]:
    """Django's LOGGING. `style`: line (people) or json (collectors). `level`: of our own loggers."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": [*_shared(), structlog.stdlib.ExtraAdder(), drop_colour],
        "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderer(style)],
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"main": formatter},
        "filters": {"outage": {"()": Outage}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "main"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            **{name: {"level": level} for name in ("multica", "queue_app", "cron_app")},
            "uvicorn.error": {"level": "INFO"},
            "uvicorn.access": {"level": "WARNING"},
            "celery": {"level": "INFO"},
            "channels_redis.pubsub": {"level": "WARNING", "filters": ["outage"]},
            # A request line for every 4xx doubles what the door already answered; 5xx come with their traceback.
            "django.request": {"level": "ERROR"},
        },
    }


def level_from(text: str) -> str:
    name = text.upper()
    if name not in logging.getLevelNamesMapping():
        raise ValueError(f"MULTICA_LOG_LEVEL must be one of debug, info, warning, error, not {text!r}")
    return name
