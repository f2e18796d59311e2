"""The page of ``seqdiff playground``: what it can do with a run, its jobs, and the server."""

from seqdiff.playground.app import build_app
from seqdiff.playground.studio import Hooks, Studio

__all__ = ["Hooks", "Studio", "build_app"]
