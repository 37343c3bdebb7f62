"""Who answers a model call: provider, model and server, read from a smolagents model object.

The mapping follows ``gen_ai.provider.name`` of the GenAI conventions. Values are closed lists: the attribute is on
metrics, so nothing that a user makes up gets through. Model ids and addresses go out without credentials.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from otel_smol.guard import guarded

PROVIDERS_BY_CLASS = {
    "AzureOpenAIModel": "azure.ai.openai",
    "OpenAIModel": "openai",
    "LiteLLMRouterModel": "litellm",
    "LiteLLMModel": "litellm",
    "InferenceClientModel": "huggingface",
    "AmazonBedrockModel": "aws.bedrock",
    "TransformersModel": "huggingface",
    "VLLMModel": "vllm",
    "MLXModel": "mlx",
}
"""By the names of today. Up to smolagents 1.20 some are called `…ServerModel`."""
PROVIDERS_BY_HOST = (
    (r"\.openai\.azure\.com$", "azure.ai.openai"),
    (r"\.services\.ai\.azure\.com$|\.inference\.ai\.azure\.com$", "azure.ai.inference"),
    (r"(^|\.)deepseek\.com$", "deepseek"),
    (r"(^|\.)groq\.com$", "groq"),
    (r"(^|\.)mistral\.ai$", "mistral_ai"),
    (r"(^|\.)x\.ai$", "x_ai"),
    (r"(^|\.)perplexity\.ai$", "perplexity"),
    (r"(^|\.)moonshot\.(ai|cn)$", "moonshot_ai"),
    (r"^generativelanguage\.googleapis\.com$", "gcp.gemini"),
    (r"^bedrock-runtime\.", "aws.bedrock"),
)
PROVIDERS_BY_LITELLM_PREFIX = {
    "anthropic": "anthropic",
    "openai": "openai",
    "groq": "groq",
    "deepseek": "deepseek",
    "perplexity": "perplexity",
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "vertex_ai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "cohere": "cohere",
    "cohere_chat": "cohere",
    "watsonx": "ibm.watsonx.ai",
    "moonshot": "moonshot_ai",
    "ollama": "ollama",
    "ollama_chat": "ollama",
    "openrouter": "openrouter",
    "huggingface": "huggingface",
    "together_ai": "together_ai",
    "hosted_vllm": "vllm",
    "vllm": "vllm",
}
LOCAL_CLASSES = frozenset({"TransformersModel", "VLLMModel", "MLXModel"})
INFERENCE_PROVIDERS = frozenset(
    {
        *("auto", "baseten", "black-forest-labs", "cerebras", "cohere", "deepinfra", "fal-ai", "featherless-ai"),
        *("fireworks-ai", "groq", "hf-inference", "hyperbolic", "nebius", "novita", "nscale", "openai", "ovhcloud"),
        *("publicai", "replicate", "sambanova", "scaleway", "together", "wavespeed", "zai-org"),
    }
)
"""The hub's inference providers (`huggingface_hub`'s PROVIDER_T); any other value is `other`."""

_SECRET = re.compile(
    r"\b(sk|xai|pk|rk|nvapi)[-_][\w-]{16,}|\b(hf|gsk|r8)_\w{16,}|\bAIza[\w-]{30,}|\bAKIA[A-Z0-9]{12,}\b"
    r"|\bBearer\s+\S+",
    re.IGNORECASE,
)
"""Keys of the usual providers. `hf-` begins names on the hub (`hf-internal-testing/…`); tokens begin with `hf_`."""
_USER_INFO = re.compile(r"(?<=//)[^/]*@|^[^/@]+:[^/@]+@(?=[^/]+/)")
_MAX_MODEL_ID = 256


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a span says of the model that is called."""

    provider: str = "unknown"
    model_id: str | None = None
    server_address: str | None = None
    server_port: int | None = None
    inference_provider: str | None = None


def describe_model(model: object) -> ModelFacts:
    """Read the facts from a model object. What cannot be read is left out."""
    known = _known_class(type(model))
    model_id = url = inference_provider = None
    with guarded("reading a model's id"):
        model_id = getattr(model, "model_id", None)
    with guarded("reading a model's server"):
        url = _base_url(model, model_id) if known not in LOCAL_CLASSES else None
    with guarded("reading a model's inference provider"):
        inference_provider = _inference_provider(model) if known == "InferenceClientModel" else None
    host = url.hostname if url else None
    return ModelFacts(
        provider=_provider(known, model_id, host),
        model_id=public_model_id(model_id) if isinstance(model_id, str) else None,
        server_address=host,
        server_port=(url.port or {"https": 443, "http": 80}.get(url.scheme)) if url and host else None,
        inference_provider=inference_provider,
    )


def public_model_id(model_id: str) -> str | None:
    """The id without user info, query or anything that looks like a key; None when nothing is left."""
    text = re.split("[?#]", model_id.strip(), maxsplit=1)[0]
    text = _USER_INFO.sub("", text)
    return _SECRET.sub("[redacted]", text)[:_MAX_MODEL_ID] or None


def _known_class(cls: type) -> str | None:
    for base in cls.__mro__:
        name = base.__name__.replace("ServerModel", "Model")
        if name in PROVIDERS_BY_CLASS and base.__module__.startswith("smolagents."):
            return name
    return None


def _provider(known: str | None, model_id: object, host: str | None) -> str:
    if known is None:
        return "unknown"
    if known == "OpenAIModel" and host:
        return next((name for pattern, name in PROVIDERS_BY_HOST if re.search(pattern, host)), "openai")
    if known == "LiteLLMModel" and isinstance(model_id, str) and "/" in model_id:
        return PROVIDERS_BY_LITELLM_PREFIX.get(model_id.partition("/")[0], "litellm")
    return PROVIDERS_BY_CLASS[known]


def _base_url(model: object, model_id: object) -> _Url | None:
    own: dict[str, Any] = getattr(model, "__dict__", {})  # nothing else: a property may open a connection
    client, settings = own.get("client"), _client_settings(own)
    meta = getattr(client, "meta", None)  # boto3
    candidates = (
        getattr(client, "base_url", None),  # openai
        getattr(meta, "endpoint_url", None),
        settings.get("base_url"),
        settings.get("azure_endpoint"),
        own.get("api_base"),
        getattr(client, "model", None),  # huggingface_hub's client keeps its `base_url` there
        model_id,  # InferenceClientModel takes an endpoint's address as the model
    )
    for candidate in candidates:
        text = str(candidate) if candidate is not None and type(candidate).__name__ in ("str", "URL") else ""
        if text.startswith(("http://", "https://")):
            try:
                parts = urlsplit(text)
                return _Url(parts.scheme, parts.hostname, parts.port)
            except ValueError:  # no address after all
                return None
    return None


@dataclass(frozen=True, slots=True)
class _Url:
    scheme: str
    hostname: str | None
    port: int | None


def _client_settings(own: dict[str, Any]) -> dict[str, Any]:
    settings = own.get("client_kwargs")
    return settings if isinstance(settings, dict) else {}


def _inference_provider(model: object) -> str | None:
    value = _client_settings(getattr(model, "__dict__", {})).get("provider")
    if value is None:
        return None
    return value if value in INFERENCE_PROVIDERS else "other"
