// Clients from npm: each streams, continues a conversation, calls tools and gets structured output.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const baseURL = `${process.env.TEST_API_BASE_URL}/v1`;
const apiKey = "My API Key";
const model = "scripted/demo";
const client = new OpenAI({ apiKey, baseURL, maxRetries: 0 });

const Weather = z.object({ city: z.string(), degrees: z.number() });
const question = 'What is the weather in "Rome"?';
const statement = 'It is 21 degrees in "Rome".';
const expected = { city: "Rome", degrees: 21 };
const greeting = /I am scripted\/demo/;
const parameters = {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
};

test("openai streams Chat Completions, and the history continues", async () => {
    const messages = [{ role: "user", content: "Hello!" }];
    const stream = client.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    assert.match(text, greeting);
    const whole = await stream.finalChatCompletion();
    assert.equal(whole.choices[0].message.content, text);
    assert.ok(whole.usage.completion_tokens > 0);
    const next = [...messages, whole.choices[0].message, { role: "user", content: "And forks?" }];
    const reply = await client.chat.completions.create({ model, messages: next });
    assert.match(reply.choices[0].message.content, /A fork is a copy/);
});

test("openai calls tools by Chat Completions", async () => {
    const asked = [];
    const runner = client.chat.completions.runTools({
        model,
        messages: [{ role: "user", content: question }],
        stream: true,
        tools: [
            {
                type: "function",
                function: {
                    name: "get_weather",
                    description: "The weather.",
                    parameters,
                    parse: JSON.parse,
                    function: ({ city }) => (asked.push(city), "sunny"),
                },
            },
        ],
    });
    assert.match(await runner.finalContent(), /`get_weather` returned: sunny/);
    assert.deepEqual(asked, ["Rome"]);
});

test("openai gets structured output by Chat Completions", async () => {
    const reply = await client.chat.completions.parse({
        model,
        messages: [{ role: "user", content: statement }],
        response_format: zodResponseFormat(Weather, "weather"),
    });
    assert.deepEqual(reply.choices[0].message.parsed, expected);
});

test("openai streams Responses, and previous_response_id continues", async () => {
    const stream = client.responses.stream({ model, input: "Hello!" });
    let text = "";
    for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
    const first = await stream.finalResponse();
    assert.match(text, greeting);
    assert.equal(first.output_text, text);
    const second = await client.responses.create({ input: "And forks?", previous_response_id: first.id });
    assert.match(second.output_text, /A fork is a copy/);
    const items = await client.responses.inputItems.list(second.id);
    assert.equal(items.data[0].content[0].text, "And forks?");
});

test("openai calls tools by Responses", async () => {
    const tools = [{ type: "function", name: "get_weather", description: "The weather.", parameters, strict: true }];
    const first = await client.responses.create({ model, input: question, tools });
    const call = first.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Rome" });
    const input = [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }];
    const second = await client.responses.create({ model, input, tools, previous_response_id: first.id });
    assert.match(second.output_text, /`get_weather` returned: sunny/);
});

test("openai gets structured output by Responses", async () => {
    const reply = await client.responses.parse({
        model,
        input: statement,
        text: { format: zodTextFormat(Weather, "weather") },
    });
    assert.deepEqual(reply.output_parsed, expected);
});

test("openai understands errors", async () => {
    const refused = client.responses.create({ model: "no/such", input: "Hello!" });
    await assert.rejects(refused, (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
});

test("openai lists models and makes vectors", async () => {
    const models = [];
    for await (const one of client.models.list()) models.push(one.id);
    assert.ok(models.includes(model));
    const vectors = await client.embeddings.create({ model, input: ["one", "two"] });
    assert.equal(vectors.data.length, 2);
    assert.ok(vectors.data[0].embedding.every(Number.isFinite));
});

const providers = {
    "@ai-sdk/openai-compatible": createOpenAICompatible({
        name: "vibe",
        baseURL,
        apiKey,
        includeUsage: true,
        supportsStructuredOutputs: true,
    }),
    "@ai-sdk/open-responses": createOpenResponses({ name: "vibe", url: `${baseURL}/responses`, apiKey }),
};

for (const [name, provider] of Object.entries(providers)) {
    test(`${name} streams, and the history continues`, async () => {
        const prompt = [{ role: "user", content: "Hello!" }];
        const result = streamText({ model: provider(model), messages: prompt, onError: ({ error }) => assert.fail(error) });
        let said = "";
        for await (const part of result.textStream) said += part;
        assert.match(said, greeting);
        assert.ok((await result.usage).outputTokens > 0);
        assert.equal(await result.finishReason, "stop");
        const { messages } = await result.response;
        const next = [...prompt, ...messages, { role: "user", content: "And forks?" }];
        const { text } = await generateText({ model: provider(model), messages: next });
        assert.match(text, /A fork is a copy/);
    });

    test(`${name} calls tools`, async () => {
        const asked = [];
        const result = streamText({
            model: provider(model),
            prompt: question,
            stopWhen: stepCountIs(3),
            onError: ({ error }) => assert.fail(error),
            tools: {
                get_weather: tool({
                    description: "The weather.",
                    inputSchema: z.object({ city: z.string() }),
                    execute: async ({ city }) => (asked.push(city), "sunny"),
                }),
            },
        });
        assert.match(await result.text, /`get_weather` returned: .*sunny/);
        assert.deepEqual(asked, ["Rome"]);
        assert.equal((await result.steps).length, 2);
    });

    test(`${name} gets structured output`, async () => {
        const { output } = await generateText({
            model: provider(model),
            prompt: statement,
            output: Output.object({ schema: Weather }),
        });
        assert.deepEqual(output, expected);
    });
}
