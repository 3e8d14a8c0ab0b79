"""What an end means to the work that a task was for. Importing this registers every effect (see `queue_app.hooks`)."""

from . import issues as issues
from . import quick_creates as quick_creates
