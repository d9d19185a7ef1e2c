"""The console: a page that shows a model's curve and a prediction that improves as groups arrive."""

from __future__ import annotations

from fastapi import APIRouter

from anytime_service.api import sample
from anytime_service.api.console import curve, pages

__all__ = [
    "router",
]

router = APIRouter()
for module in (pages, curve, sample):
    router.include_router(module.router)
