"""The console: a page that shows a model's curve and lets one watch a prediction improve."""

from __future__ import annotations

from fastapi import APIRouter

from anytime_service.api import sample
from anytime_service.api.console import curve, pages

__all__ = [
    "router",
]

router = APIRouter()
for room in (pages, curve, sample):
    router.include_router(room.router)
