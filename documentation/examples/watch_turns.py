import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from vibe_llms import open_session

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)


async def main() -> None:
    async with open_session(configuration={"telemetry": {"enabled": True}}) as session:
        conversation = await session.begin("scripted/demo")
        await conversation.converse("Hello!")
    for span in exporter.get_finished_spans():
        attributes = span.attributes or {}
        same = attributes["gen_ai.conversation.id"] == conversation.identity
        print(span.name, same, attributes.get("gen_ai.response.finish_reasons"))


asyncio.run(main())
