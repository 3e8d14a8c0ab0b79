"""Django settings of the server. Every deployment difference comes from the environment (docs/settings.md)."""

from __future__ import annotations

from typing import Any

from multica import databases, env, logs

BASE_DIR = env.CHECKOUT
STATE_DIR = env.state_dir()
ROLE = env.role()

# Windows, counts and the time scale. Code reads them through `queue_app.conf`, never from here.
MULTICA: dict[str, Any] = env.windows()

DEBUG = env.flag("MULTICA_DEBUG")
SECRET_KEY = env.secret_key()
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *env.words("MULTICA_ALLOWED_HOSTS")]
CSRF_TRUSTED_ORIGINS = env.words("MULTICA_TRUSTED_ORIGINS")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "channels",
    "multica",
    "queue_app",
    "cron_app",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

AUTH_USER_MODEL = "queue_app.User"
ROOT_URLCONF = "multica.urls"
WSGI_APPLICATION = "multica.wsgi.application"
ASGI_APPLICATION = "multica.asgi.application"
APPEND_SLASH = False  # the daemon protocol has slashless paths, and a redirect would turn a POST into a GET

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASE_URL = env.database_url()
DATABASES = {"default": databases.database(DATABASE_URL, ROLE)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.redis_url()
REDIS_TIMEOUT = MULTICA["REDIS_TIMEOUT"]
# Pub/sub does not know database numbers: stacks and test workers that share one server differ by this prefix.
CHANNEL_PREFIX = env.text("MULTICA_CHANNEL_PREFIX", "multica")

if REDIS_URL:
    CACHES: dict[str, Any] = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": REDIS_URL,
            "KEY_PREFIX": CHANNEL_PREFIX,
            "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": REDIS_TIMEOUT, "SOCKET_TIMEOUT": REDIS_TIMEOUT},
        }
    }
    CHANNEL_LAYERS: dict[str, Any] = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {
                "hosts": [
                    {"address": REDIS_URL, "socket_connect_timeout": REDIS_TIMEOUT, "socket_timeout": REDIS_TIMEOUT}
                ],
                "prefix": CHANNEL_PREFIX,
            },
        }
    }
else:
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AUTH_USER_MODEL = "queue_app.User"
LOGIN_URL = "/admin/login/"

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"
# Served straight from the packages: no collectstatic step to forget on one machine.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.flag("MULTICA_HTTPS")
if env.flag("MULTICA_HTTPS"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# A report with the output of a long run is large; the doors bound each field themselves.
DATA_UPLOAD_MAX_MEMORY_SIZE = 64 * 1024 * 1024

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    # Nothing is open by accident: a view that forgets its permission answers 403.
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Multica",
    "DESCRIPTION": "Control plane for coding agents: tasks, runtimes, issues, schedules.",
    "VERSION": "0.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
}

CELERY_BROKER_URL = env.celery_broker(REDIS_URL)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_DEFAULT_QUEUE = f"{CHANNEL_PREFIX}-celery"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TIMEZONE = "UTC"

LOGGING = logs.config(env.text("MULTICA_LOG_FORMAT", "line"), logs.level_from(env.text("MULTICA_LOG_LEVEL", "info")))
