"""DSPy's own client and LiteLLM's, with servers of other names."""

from __future__ import annotations

import logging

import dspy
import pytest

from agentspec.adapters.dspy import instrument
from tests.adapters.support.strangers import PUBLIC, serving_every_name

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from LiteLLM
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # from LiteLLM
    pytest.mark.filterwarnings("ignore:(Pydantic serializer warnings|Item '.*' on TypedDict)"),
]


@pytest.mark.parametrize("engine", ["lm15", "litellm"])
def test_strangers_get_no_tag(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "agentspec.adapters")
    with serving_every_name() as server:
        undo = instrument(workflow="flow")
        for host in ("gateway", PUBLIC):
            url = f"http://{host}:{server.server_port}/v1"
            model = dspy.LM(
                "openai/m", api_base=url, api_key="none", cache=False, num_retries=0, engine=engine
            )
            model("hi")
            model.close()
        undo()
    assert server.tags() == [("gateway", {"x-agentspec-workflow": "flow"}), (PUBLIC, {})]
    assert [record.getMessage() for record in caplog.records if record.name == "agentspec.adapters"] == [
        "tagged m as one of flow, and the gateway finds its stage",
        f"not tagged: {PUBLIC} is no host of hosts=[...], nor a private one",
    ]
