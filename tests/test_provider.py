"""Which provider, model and server a smolagents model object stands for; and what must not go out with them."""

from __future__ import annotations

from typing import Any

import pytest
import smolagents
from hypothesis import given
from hypothesis import strategies as st
from smolagents import (
    AmazonBedrockModel,
    AzureOpenAIModel,
    InferenceClientModel,
    LiteLLMModel,
    LiteLLMRouterModel,
    Model,
    OpenAIModel,
)

from otel_smol import semconv as sc
from otel_smol.guard import forget_warnings
from otel_smol.provider import INFERENCE_PROVIDERS, ModelFacts, describe_model, public_model_id
from tests.conftest import Observed, Warnings, attributes
from tests.scripted import FINAL_CODE, Script, ScriptedModel, agent

OPENAI_HOSTS = [
    ("https://api.openai.com/v1", "openai"),
    ("https://me.openai.azure.com/openai/v1", "azure.ai.openai"),
    ("https://me.services.ai.azure.com/models", "azure.ai.inference"),
    ("https://me.inference.ai.azure.com", "azure.ai.inference"),
    ("https://api.deepseek.com", "deepseek"),
    ("https://api.groq.com/openai/v1", "groq"),
    ("https://api.mistral.ai/v1", "mistral_ai"),
    ("https://api.x.ai/v1", "x_ai"),
    ("https://api.perplexity.ai", "perplexity"),
    ("https://api.moonshot.ai/v1", "moonshot_ai"),
    ("https://api.moonshot.cn/v1", "moonshot_ai"),
    ("https://generativelanguage.googleapis.com/v1beta/openai/", "gcp.gemini"),
    ("https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", "aws.bedrock"),
    ("http://localhost:8000/v1", "openai"),
    ("https://notdeepseek.com", "openai"),
    ("https://api.x.ai.example.org", "openai"),
]
LITELLM_IDS = [
    ("anthropic/claude-sonnet", "anthropic"),
    ("openai/gpt-4o", "openai"),
    ("groq/llama", "groq"),
    ("deepseek/deepseek-chat", "deepseek"),
    ("perplexity/sonar", "perplexity"),
    ("azure/deployment", "azure.ai.openai"),
    ("azure_ai/command-r", "azure.ai.inference"),
    ("bedrock/anthropic.claude", "aws.bedrock"),
    ("gemini/gemini-2.5-pro", "gcp.gemini"),
    ("vertex_ai/claude-3-5-sonnet@20240620", "gcp.vertex_ai"),
    ("mistral/mistral-large", "mistral_ai"),
    ("xai/grok", "x_ai"),
    ("cohere/command-r", "cohere"),
    ("cohere_chat/command-r", "cohere"),
    ("watsonx/granite", "ibm.watsonx.ai"),
    ("moonshot/kimi", "moonshot_ai"),
    ("ollama/llama3", "ollama"),
    ("ollama_chat/llama3", "ollama"),
    ("openrouter/anthropic/claude", "openrouter"),
    ("huggingface/together/deepseek-ai/DeepSeek-R1", "huggingface"),
    ("together_ai/llama", "together_ai"),
    ("hosted_vllm/llama", "vllm"),
    ("gpt-4o", "litellm"),
    ("something_made_up/model", "litellm"),
]


def bare(cls: Any, model_id: str = "org/model", **fields: Any) -> Any:
    """An object of a class whose constructor needs a machine that is not here."""
    model = cls.__new__(cls)
    vars(model).update(model_id=model_id, **fields)
    return model


def stand_in(name: str, module: str = "smolagents.models") -> type:
    """A class as another version of smolagents has it."""
    return type(name, (Model,), {"__module__": module})


def openai_model(base_url: str | None = None, **kwargs: Any) -> OpenAIModel:
    return OpenAIModel("gpt-4o", api_base=base_url, api_key="unused", **kwargs)


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base_url", "provider"), OPENAI_HOSTS)
def test_openai_compatible_servers_go_by_their_host(base_url: str, provider: str) -> None:
    """An `OpenAIModel` speaks to many providers: the host tells which, and a look-alike host is none of them."""
    facts = describe_model(openai_model(base_url))
    host = base_url.partition("://")[2].split("/")[0].split(":")[0]
    assert (facts.provider, facts.model_id, facts.server_address) == (provider, "gpt-4o", host)
    assert facts.server_port == (443 if base_url.startswith("https") else 8000)


@pytest.mark.parametrize(("model_id", "provider"), LITELLM_IDS)
def test_litellm_goes_by_the_prefix_of_the_model(model_id: str, provider: str) -> None:
    """LiteLLM's prefixes map to the convention's names; one that is not in the list is `litellm`, not itself."""
    facts = describe_model(LiteLLMModel(model_id, client=object(), api_base="http://localhost:4000"))
    assert facts == ModelFacts(provider, model_id, "localhost", 4000)


def test_the_other_classes_go_by_their_class() -> None:
    """Router, Hub client, Azure: class and address."""
    router = LiteLLMRouterModel("anthropic/alias", [], client=object())
    assert describe_model(router) == ModelFacts("litellm", "anthropic/alias")
    azure = AzureOpenAIModel("deployment", "https://me.openai.azure.com", api_key="unused", api_version="2024-10-21")
    assert describe_model(azure) == ModelFacts("azure.ai.openai", "deployment", "me.openai.azure.com", 443)
    own_host = AzureOpenAIModel("deployment", "https://gateway.example.org", api_key="unused", api_version="2024-10-21")
    assert describe_model(own_host).provider == "azure.ai.openai"
    endpoint = InferenceClientModel("https://endpoint.example.org/v1", token="unused")
    assert describe_model(endpoint).server_address == "endpoint.example.org"


@pytest.mark.parametrize("broken", ["model_id", "client", "client_kwargs", "api_base"])
def test_what_cannot_be_read_takes_nothing_with_it(broken: str, warned: Warnings) -> None:
    """An id that raises costs the id, and one line says so. Other properties are not read at all: they may open a
    connection that the model does not need."""

    def fail(self: Any) -> Any:
        raise RuntimeError("broken")

    forget_warnings()
    model = openai_model("https://api.groq.com/openai/v1")
    model.__class__ = type("Broken", (OpenAIModel,), {broken: property(fail)})
    found = describe_model(model)
    assert found == ModelFacts("groq", None if broken == "model_id" else "gpt-4o", "api.groq.com", 443)
    assert len(warned.lines) == (broken == "model_id")


def test_bedrock() -> None:
    """Bedrock's address is that of its region."""
    pytest.importorskip("boto3")
    model = AmazonBedrockModel("us.amazon.nova", client_kwargs={"region_name": "us-east-1"})
    host = "bedrock-runtime.us-east-1.amazonaws.com"
    assert describe_model(model) == ModelFacts("aws.bedrock", "us.amazon.nova", host, 443)


@pytest.mark.parametrize(
    ("cls", "provider"),
    [
        (smolagents.TransformersModel, "huggingface"),
        (smolagents.VLLMModel, "vllm"),
        (smolagents.MLXModel, "mlx"),
    ],
)
def test_models_in_this_process(cls: type, provider: str) -> None:
    """Models that run in this process have a provider and no server, whatever their id looks like."""
    assert describe_model(bare(cls)) == ModelFacts(provider, "org/model")
    assert describe_model(bare(cls, "https://example.org/model")).server_address is None


@pytest.mark.parametrize("provider", ["together", "made-up-by-a-user", None])
def test_the_hubs_routing_has_a_name_of_its_own(provider: str | None) -> None:
    """The provider that the Hub routes to is no `gen_ai.provider.name`; one that the Hub does not know is `other`."""
    facts = describe_model(InferenceClientModel("org/model", provider=provider, token="unused"))
    assert facts.provider == "huggingface"
    assert facts.inference_provider == (provider if provider in INFERENCE_PROVIDERS else "other" if provider else None)


@pytest.mark.parametrize(
    ("old", "provider"),
    [
        ("OpenAIServerModel", "openai"),
        ("AzureOpenAIServerModel", "azure.ai.openai"),
        ("AmazonBedrockServerModel", "aws.bedrock"),
    ],
)
def test_class_names_of_older_versions(old: str, provider: str) -> None:
    """smolagents 1.20, the oldest supported, calls three of its classes by other names."""
    assert describe_model(bare(stand_in(old))).provider == provider


def test_any_other_class_goes_by_its_first_known_ancestor() -> None:
    """A user's subclass is what it derives from; a namesake from elsewhere and a model of one's own are `unknown`."""

    class Mine(OpenAIModel):  # type: ignore[misc]
        pass

    assert describe_model(Mine("gpt", api_key="unused", api_base="https://api.groq.com")).provider == "groq"
    assert describe_model(bare(stand_in("OpenAIModel", "my.models"))).provider == "unknown"
    assert describe_model(ScriptedModel(Script())) == ModelFacts("unknown", "scripted")
    assert describe_model(ScriptedModel(Script(), None)) == ModelFacts("unknown")
    assert describe_model(object()) == ModelFacts("unknown")


def test_facts_on_the_span(observed: Observed) -> None:
    """Provider, model and server stand on the chat span and on the convention's metrics."""
    script = Script(FINAL_CODE)

    class Local(OpenAIModel):  # type: ignore[misc]
        generate = ScriptedModel.generate

    model = Local("org/model", api_key="unused", api_base="http://localhost:8000/v1")
    model.script = script
    agent(smolagents.CodeAgent, script, model=model).run("the task")
    values = attributes(observed.chats[0])
    facts = {
        sc.PROVIDER_NAME: "openai",
        sc.REQUEST_MODEL: "org/model",
        sc.SERVER_ADDRESS: "localhost",
        sc.SERVER_PORT: 8000,
    }
    assert facts.items() <= values.items()
    [(on_metric, _)] = observed.points("gen_ai.client.operation.duration")
    assert facts.items() <= on_metric.items()


# --- what must not go out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_id", "public"),
    [
        ("https://user:password@host.example/v1/model", "https://host.example/v1/model"),
        ("https://host.example:8443/model?api_key=secret#part", "https://host.example:8443/model"),
        ("https://us%40er:pass@word@host.example/model", "https://host.example/model"),
        ("huggingface/https://user:password@host.example/x?api_key=secret", "huggingface/https://host.example/x"),
        ("//user:password@host.example/model", "//host.example/model"),
        ("user:password@host.example/model", "host.example/model"),
        ("gpt-4o?api_key=secret", "gpt-4o"),
        ("https://host.example/sk-abcdefghijklmnopqrstuvwx/model", "https://host.example/[redacted]/model"),
        ("hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "[redacted]"),
        ("key AIzaSyA1234567890abcdefghijklmnopqrstu", "key [redacted]"),
        ("https://[::1/model", "https://[::1/model"),
        ("m" * 300, "m" * 256),
        ("  ", None),
        ("?api_key=secret", None),
    ],
)
def test_ids_without_credentials(model_id: str, public: str | None) -> None:
    """P56: user info, queries and keys are taken out of a model's id, whatever form the id has."""
    assert public_model_id(model_id) == public


@pytest.mark.parametrize(
    "model_id",
    [
        *(model_id for model_id, _ in LITELLM_IDS),
        "hf-internal-testing/tiny-random-LlamaForCausalLM",
        "meta-llama/Llama-3.3-70B-Instruct",
        "llama3:8b",
        "registry.example/llama3:8b@sha256:0123456789abcdef",
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.amazon.nova",
        "C:\\models\\llama.gguf",
        "/home/user/models/llama",
        "ft:gpt-4o-mini:my-org:custom:id",
        "sk-mini",
    ],
)
def test_ids_that_are_left_alone(model_id: str) -> None:
    """An id that holds no credentials is not touched: it is what users group their costs by."""
    assert public_model_id(model_id) == model_id


secrets = st.text("abcXYZ0123456789-_.~", min_size=8, max_size=20).filter(lambda text: text.strip("."))


@given(secrets, secrets, st.sampled_from(["https://", "http://", "huggingface/https://", "//"]))
def test_credentials_never_pass(user: str, password: str, start: str) -> None:
    """P56: neither user, password nor the value of a query survives."""
    public = public_model_id(f"{start}{user}:{password}@HOST/MODEL?api_key={password}&user={user}")
    assert public == f"{start}HOST/MODEL"


def test_server_addresses_have_no_credentials() -> None:
    """P56: of an address only host and port go out."""
    model = LiteLLMModel("gpt", client=object(), api_base="https://user:password@host.example:99/v1?api_key=secret")
    assert describe_model(model) == ModelFacts("litellm", "gpt", "host.example", 99)


def test_an_address_that_is_none_costs_only_itself() -> None:
    """An address with a port that is no number is left out; provider and model are not."""
    model = LiteLLMModel("openai/gpt", client=object(), api_base="http://host.example:port/v1")
    assert describe_model(model) == ModelFacts("openai", "openai/gpt")
