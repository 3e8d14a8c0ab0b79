"""Django as a WSGI application; it is served in threads by `multica.asgi`, or alone by any WSGI server."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "multica.settings")

application = get_wsgi_application()
