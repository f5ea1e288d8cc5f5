"""As mooncake.store, over mc."""
from __future__ import annotations

from mc.compat.mooncake.store import *  # noqa: F401,F403
