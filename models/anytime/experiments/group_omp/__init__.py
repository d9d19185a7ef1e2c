"""The experiments of the Group-OMP paper (Lozano, Swirszcz and Abe, 2009, section 4)."""

from __future__ import annotations
