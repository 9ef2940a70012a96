// The tasks of `programs/test_programs.py`, for npm's `ai` with its default providers of OpenAI and
// Anthropic, and for the package of Anthropic.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const root = process.env.TEST_API_BASE_URL;
const apiKey = "My API Key";
const model = "upstream/thinker";
const openai = createOpenAI({ baseURL: `${root}/v1`, apiKey });
const anthropic = createAnthropic({ baseURL: `${root}/v1`, apiKey });
const client = new Anthropic({ baseURL: root, apiKey, maxRetries: 0 });

const greeting = /I am scripted\/demo/;
const thought = /Let me think about that\./;
const picture =
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC";
const turns = 20;

const models = {
    "@ai-sdk/openai by Responses": openai(model),
    "@ai-sdk/openai by Chat Completions": openai.chat(model),
    "@ai-sdk/anthropic": anthropic(model),
};

for (const [name, chosen] of Object.entries(models)) {
    test(`${name}: a reply comes in one piece`, async () => {
        const { text } = await generateText({ model: chosen, prompt: "Hello!" });
        assert.match(text, greeting);
    });

    test(`${name}: a reply is streamed`, async () => {
        const result = streamText({ model: chosen, prompt: "Hello!", onError: ({ error }) => assert.fail(error) });
        let said = "";
        for await (const part of result.textStream) said += part;
        assert.match(said, greeting);
        assert.equal(await result.finishReason, "stop");
        assert.ok((await result.usage).outputTokens > 0);
    });

    // This provider does not read reasoning from Chat Completions, which OpenAI does not send.
    test(`${name}: reasoning is shown`, { skip: name.includes("Chat") }, async () => {
        const result = streamText({ model: chosen, prompt: "Hello!" });
        let streamed = "";
        for await (const part of result.fullStream) if (part.type === "reasoning-delta") streamed += part.text;
        assert.match(streamed, thought);
    });

    test(`${name}: a tool is called, and its result is read`, async () => {
        const cities = [];
        const result = await generateText({
            model: chosen,
            prompt: 'What is the weather in "Rome"?',
            stopWhen: stepCountIs(3),
            tools: {
                get_weather: tool({
                    description: "Return the weather.",
                    inputSchema: z.object({ city: z.string() }),
                    execute: async ({ city }) => (cities.push(city), "sunny"),
                }),
            },
        });
        assert.match(result.text, /`get_weather` returned: .*sunny/);
        assert.deepEqual(cities, ["Rome"]);
    });

    test(`${name}: a reply keeps to a schema`, async () => {
        const { output } = await generateText({
            model: chosen,
            prompt: 'It is 21 degrees in "Rome".',
            output: Output.object({ schema: z.object({ city: z.string(), degrees: z.number() }) }),
        });
        assert.deepEqual(output, { city: "Rome", degrees: 21 });
    });

    test(`${name}: an image arrives`, async () => {
        const content = [
            { type: "text", text: "What is in this picture?" },
            { type: "file", mediaType: "image/png", data: Buffer.from(picture, "base64") },
        ];
        const { text } = await generateText({ model: chosen, messages: [{ role: "user", content }] });
        assert.match(text, /I see image\/png\./);
    });

    test(`${name}: a conversation has twenty turns`, async () => {
        const messages = [];
        for (let number = 1; number <= turns; number++) {
            messages.push({ role: "user", content: "Which turn is this?" });
            const result = await generateText({ model: chosen, messages });
            assert.match(result.text, new RegExp(`This is turn ${number}\\.`));
            messages.push(...result.response.messages);
        }
    });

    test(`${name}: a reply is cancelled`, async () => {
        const leaving = new AbortController();
        const result = streamText({
            model: chosen,
            prompt: "Count slowly.",
            abortSignal: leaving.signal,
            onError: () => {},
        });
        let said = "";
        try {
            for await (const part of result.textStream) {
                said += part;
                leaving.abort();
            }
        } catch (error) {
            assert.equal(error.name, "AbortError");
        }
        assert.match(said, /^one/);
        const { text } = await generateText({ model: chosen, prompt: "Hello!" });
        assert.match(text, greeting);
    });
}

test("@anthropic-ai/sdk streams thinking, calls tools and continues", async () => {
    const messages = [{ role: "user", content: 'What is the weather in "Rome"?' }];
    const tools = [
        {
            name: "get_weather",
            description: "Return the weather.",
            input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        },
    ];
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const options = { model, tools, thinking, max_tokens: 2048 };
    const stream = client.messages.stream({ ...options, messages });
    let thoughts = "";
    stream.on("thinking", (delta) => (thoughts += delta));
    const first = await stream.finalMessage();
    assert.match(thoughts, thought);
    const call = first.content.find((block) => block.type === "tool_use");
    assert.deepEqual(call.input, { city: "Rome" });
    messages.push({ role: "assistant", content: first.content });
    messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "sunny" }] });
    const second = await client.messages.create({ ...options, messages });
    assert.match(second.content.at(-1).text, /`get_weather` returned: sunny/);
});
