"""Chains that walk masked blocks and others in one loop, as Triton's interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from support.interpreting import interpreted

import tilec

pytestmark = interpreted
