"""What decode steps cost and what their drafts save, learned from the steps' times, in the native core.

The price of a draft token is ``StepCost``'s (docs/drafting.md). ``PlainStep`` estimates a step's time without
drafts (docs/ui.md). ``StepMeter`` keeps both for an engine that drafts at the end of a step, as vLLM does. No
clock, no engine and no request is known here.
"""

from __future__ import annotations

from agentspec._native import COST_WINDOW, FIRST_PRICE, PlainStep, StepCost, StepMeter, StepSaving

__all__ = ["COST_WINDOW", "FIRST_PRICE", "PlainStep", "StepCost", "StepMeter", "StepSaving"]
