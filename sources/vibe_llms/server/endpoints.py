"""The table of endpoints: handler, parameters, and reply of each path and method."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from vibe_llms.conversations.attachments import UNKNOWN_TYPE
from vibe_llms.importing.reports import ImportReportDocument
from vibe_llms.memory.descriptions import MemoryEntry
from vibe_llms.runs.descriptions import AskedQuestion, QueuedMessage, RunDescription, RunView
from vibe_llms.runs.events import RunEvent
from vibe_llms.server import chat_requests, messages_requests, responses_requests
from vibe_llms.server.api_budgets import BudgetList, list_budgets
from vibe_llms.server.api_changes import follow_changes
from vibe_llms.server.api_context import (
    Compaction,
    CompactionOrder,
    ContextDescription,
    compact_conversation,
    show_context,
)
from vibe_llms.server.api_conversations import (
    ConversationChange,
    ConversationList,
    ConversationRemoved,
    ConversationsQuery,
    ForkOrder,
    MessageList,
    MessagesQuery,
    change_conversation,
    fork_conversation,
    list_conversations,
    remove_conversation,
    search_messages,
    show_conversation,
    show_family,
)
from vibe_llms.server.api_documents import (
    CollectionDescription,
    CollectionList,
    CollectionRemoved,
    DocumentDescription,
    DocumentList,
    DocumentQuery,
    PassageList,
    PassagesQuery,
    describe_document,
    index_collection,
    list_collections,
    list_documents,
    remove_collection,
    remove_document,
    search_documents,
    upload_document,
)
from vibe_llms.server.api_export import ExportQuery, export_conversation
from vibe_llms.server.api_files import (
    FileList,
    UploadQuery,
    list_files,
    load_content,
    remove_file,
    show_file,
    upload_file,
)
from vibe_llms.server.api_imports import (
    ImportList,
    ImportQuery,
    ImportReportQuery,
    cancel_import,
    list_imports,
    remove_import,
    show_import,
    show_import_report,
    start_import,
    upload_import,
)
from vibe_llms.server.api_memory import (
    EntriesQuery,
    EntryHistory,
    EntryList,
    EntryListQuery,
    FactChange,
    FoundEntryList,
    NewFact,
    RecalledList,
    add_fact,
    change_entry,
    list_entries,
    list_recalled,
    remove_entry,
    search_entries,
    show_entry,
    show_history,
)
from vibe_llms.server.api_messages import MessagePageQuery, list_messages
from vibe_llms.server.api_models import AgentList, ModelList, describe_models, list_agents
from vibe_llms.server.api_runs import (
    RunAnswer,
    RunApproval,
    RunDecision,
    RunList,
    RunListQuery,
    RunMessage,
    RunOrder,
    RunQuery,
    answer_question,
    cancel_run,
    decide_call,
    follow_run,
    list_runs,
    show_run,
    start_run,
    steer_run,
    take_back_message,
)
from vibe_llms.server.api_sessions import (
    LoginBegun,
    LoginList,
    LoginOrder,
    LoginState,
    LoginView,
    end_session,
    list_sessions,
    log_in,
    log_out,
    show_session,
)
from vibe_llms.server.api_skills import SkillList, list_skills
from vibe_llms.server.api_tools import ToolSourceList, ToolsQuery, list_tools
from vibe_llms.server.api_waiting import WaitingList, list_waiting
from vibe_llms.server.changes import AnyChange
from vibe_llms.server.chat_completions import complete_chat
from vibe_llms.server.chat_replies import SentReply
from vibe_llms.server.chat_requests import ChatRequest
from vibe_llms.server.core import ServerCore
from vibe_llms.server.deployments import (
    DeploymentQuery,
    DeploymentRequest,
    complete_deployment,
)
from vibe_llms.server.dial_files import (
    DialBucket,
    DialFile,
    DialForm,
    delete_dial_file,
    load_dial_file,
    post_dial_file,
    put_dial_file,
    show_bucket,
)
from vibe_llms.server.dialects import McpFailure
from vibe_llms.server.embeddings import EmbeddingReply, EmbeddingRequest, create_embeddings
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.health import ServerState, show_health, show_metrics, show_readiness
from vibe_llms.server.imports import ImportDescription
from vibe_llms.server.mcp import McpQuery, serve_mcp
from vibe_llms.server.messages import TokensCounted, count_message_tokens, create_message
from vibe_llms.server.messages_requests import CountRequest, MessageRequest
from vibe_llms.server.metrics import MEDIA_TYPE
from vibe_llms.server.model_lists import list_models, show_model
from vibe_llms.server.openapi import encode_document
from vibe_llms.server.operations import ANY, ApiOperation, ServerEndpoint, UserEndpoint
from vibe_llms.server.page import PAGE, load_page_file, show_page
from vibe_llms.server.pages import PageQuery
from vibe_llms.server.responses import (
    InputItemsQuery,
    InputTokensCounted,
    ResponseQuery,
    cancel_response,
    compact_response,
    count_input_tokens,
    create_response,
    delete_response,
    list_input_items,
    show_response,
)
from vibe_llms.server.responses_requests import ResponseRequest
from vibe_llms.server.v1_files import (
    FileForm,
    FilesQuery,
    create_file,
    delete_v1_file,
    list_v1_files,
    load_v1_file,
    show_v1_file,
)
from vibe_llms.storage.descriptions import (
    ConversationHead,
    ConversationView,
    Fork,
    MessagePage,
)
from vibe_llms.storage.families import FamilyView
from vibe_llms.storage.interfaces import UploadedFile

#: A reply in another API's format, which is documented there.
_Foreign = dict[str, Any]
#: Data of the last event of OpenAI's streams.
_DONE = "[DONE]"
#: Header of requests that a client may repeat.
_ONCE = {"Idempotency-Key": "Name of the request. A repeated request with it gets the same reply."}
#: Header of requests to models of rows with `credential = "caller"`.
_KEY = {"X-Provider-Key": "Key of the client's own provider account, for rows that require it."}
_TURN = {**_ONCE, **_KEY}
_RANGE = {"Range": "Part of the bytes, such as `bytes=0-999`."}


async def show_document(_: ServerCore, exchange: HttpExchange) -> None:
    """Describe all endpoints in an OpenAPI document."""
    await exchange.reply(_encode_document())


#: Endpoints by path and method. `{name}` matches any text without `/`, `{name...}` any text.
ENDPOINTS: Mapping[str, Mapping[str, ApiOperation]] = {
    "/": {"GET": ServerEndpoint(handler=show_page, media=PAGE)},
    "/page/{version}/{file...}": {
        "GET": ServerEndpoint(handler=load_page_file, media=ANY, logged=False)
    },
    "/health": {"GET": ServerEndpoint(handler=show_health, reply=ServerState, logged=False)},
    "/ready": {"GET": ServerEndpoint(handler=show_readiness, reply=ServerState, logged=False)},
    "/metrics": {
        "GET": ServerEndpoint(handler=show_metrics, media=MEDIA_TYPE.decode(), keyless=False)
    },
    "/api/openapi.json": {"GET": ServerEndpoint(handler=show_document, reply=_Foreign)},
    "/api/agents": {"GET": UserEndpoint(handler=list_agents, headers=_KEY, reply=AgentList)},
    "/api/budgets": {"GET": UserEndpoint(handler=list_budgets, reply=BudgetList)},
    "/api/contents/{hash}": {
        "GET": UserEndpoint(handler=load_content, headers=_RANGE, media=ANY, ranges=True)
    },
    "/api/changes": {
        "GET": UserEndpoint(
            handler=follow_changes,
            headers={"Last-Event-ID": "Id of the last event that was received."},
            events=AnyChange,
        )
    },
    "/api/conversations": {
        "GET": UserEndpoint(
            handler=list_conversations, query=ConversationsQuery, reply=ConversationList
        )
    },
    "/api/conversations/search": {
        "GET": UserEndpoint(handler=search_messages, query=MessagesQuery, reply=MessageList)
    },
    "/api/conversations/{conversation}": {
        "GET": UserEndpoint(handler=show_conversation, reply=ConversationView),
        "PATCH": UserEndpoint(
            handler=change_conversation, body=ConversationChange, reply=ConversationHead
        ),
        "DELETE": UserEndpoint(handler=remove_conversation, reply=ConversationRemoved),
    },
    "/api/conversations/{conversation}/compact": {
        "POST": UserEndpoint(
            handler=compact_conversation, headers=_KEY, body=CompactionOrder, reply=Compaction
        )
    },
    "/api/conversations/{conversation}/context": {
        "GET": UserEndpoint(handler=show_context, headers=_KEY, reply=ContextDescription)
    },
    "/api/conversations/{conversation}/export": {
        "GET": UserEndpoint(handler=export_conversation, query=ExportQuery, media=ANY)
    },
    "/api/conversations/{conversation}/family": {
        "GET": UserEndpoint(handler=show_family, reply=FamilyView)
    },
    "/api/conversations/{conversation}/fork": {
        "POST": UserEndpoint(handler=fork_conversation, body=ForkOrder, reply=Fork, status=201)
    },
    "/api/conversations/{conversation}/messages": {
        "GET": UserEndpoint(handler=list_messages, query=MessagePageQuery, reply=MessagePage)
    },
    "/api/conversations/{conversation}/recalled": {
        "GET": UserEndpoint(handler=list_recalled, reply=RecalledList)
    },
    "/api/documents": {
        "GET": UserEndpoint(handler=list_collections, reply=CollectionList),
        "POST": UserEndpoint(
            handler=upload_document,
            query=DocumentQuery,
            body=bytes,
            reply=DocumentDescription,
            status=201,
        ),
    },
    "/api/documents/search": {
        "GET": UserEndpoint(handler=search_documents, query=PassagesQuery, reply=PassageList)
    },
    "/api/documents/{collection}": {
        "GET": UserEndpoint(handler=list_documents, query=PageQuery, reply=DocumentList),
        "DELETE": UserEndpoint(handler=remove_collection, reply=CollectionRemoved),
    },
    "/api/documents/{collection}/index": {
        "POST": UserEndpoint(handler=index_collection, reply=CollectionDescription, status=202)
    },
    "/api/documents/{collection}/{document}": {
        "GET": UserEndpoint(handler=describe_document, reply=DocumentDescription),
        "DELETE": UserEndpoint(handler=remove_document, reply=DocumentDescription),
    },
    "/api/files": {
        "GET": UserEndpoint(handler=list_files, query=PageQuery, reply=FileList),
        "POST": UserEndpoint(
            handler=upload_file, query=UploadQuery, body=bytes, reply=UploadedFile, status=201
        ),
    },
    "/api/files/{file}": {
        "GET": UserEndpoint(handler=show_file, reply=UploadedFile),
        "DELETE": UserEndpoint(handler=remove_file, reply=UploadedFile),
    },
    "/api/imports": {
        "GET": UserEndpoint(handler=list_imports, reply=ImportList),
        "POST": UserEndpoint(
            handler=upload_import,
            query=ImportQuery,
            body=bytes,
            reply=ImportDescription,
            status=201,
        ),
    },
    "/api/imports/{import}": {
        "GET": UserEndpoint(handler=show_import, reply=ImportDescription),
        "DELETE": UserEndpoint(handler=remove_import, reply=ImportDescription),
    },
    "/api/imports/{import}/cancel": {
        "POST": UserEndpoint(handler=cancel_import, reply=ImportDescription)
    },
    "/api/imports/{import}/report": {
        "GET": UserEndpoint(
            handler=show_import_report, query=ImportReportQuery, reply=ImportReportDocument
        )
    },
    "/api/imports/{import}/start": {
        "POST": UserEndpoint(handler=start_import, reply=ImportDescription, status=202)
    },
    "/api/memory": {
        "GET": UserEndpoint(handler=list_entries, query=EntryListQuery, reply=EntryList),
        "POST": UserEndpoint(handler=add_fact, body=NewFact, reply=MemoryEntry, status=201),
    },
    "/api/memory/search": {
        "GET": UserEndpoint(handler=search_entries, query=EntriesQuery, reply=FoundEntryList)
    },
    "/api/memory/{entry}": {
        "GET": UserEndpoint(handler=show_entry, reply=MemoryEntry),
        "PATCH": UserEndpoint(handler=change_entry, body=FactChange, reply=MemoryEntry),
        "DELETE": UserEndpoint(handler=remove_entry, reply=MemoryEntry),
    },
    "/api/memory/{entry}/history": {"GET": UserEndpoint(handler=show_history, reply=EntryHistory)},
    "/api/models": {"GET": UserEndpoint(handler=describe_models, headers=_KEY, reply=ModelList)},
    "/api/runs": {
        "GET": UserEndpoint(handler=list_runs, query=RunListQuery, reply=RunList),
        "POST": UserEndpoint(
            handler=start_run, headers=_ONCE, body=RunOrder, reply=RunDescription, status=201
        ),
    },
    "/api/runs/{run}": {"GET": UserEndpoint(handler=show_run, reply=RunView)},
    "/api/runs/{run}/cancel": {"POST": UserEndpoint(handler=cancel_run, reply=RunDescription)},
    "/api/runs/{run}/decide": {
        "POST": UserEndpoint(handler=decide_call, body=RunDecision, reply=RunApproval)
    },
    "/api/runs/{run}/answer": {
        "POST": UserEndpoint(handler=answer_question, body=RunAnswer, reply=AskedQuestion)
    },
    "/api/runs/{run}/steer": {
        "POST": UserEndpoint(
            handler=steer_run, headers=_ONCE, body=RunMessage, reply=QueuedMessage, status=201
        )
    },
    "/api/runs/{run}/steer/{message}": {
        "DELETE": UserEndpoint(handler=take_back_message, reply=QueuedMessage)
    },
    "/api/runs/{run}/events": {
        "GET": UserEndpoint(
            handler=follow_run,
            query=RunQuery,
            headers={"Last-Event-ID": "Cursor of the last event that was received."},
            events=RunEvent,
        )
    },
    "/api/login": {"POST": ServerEndpoint(handler=log_in, body=LoginOrder, reply=LoginBegun)},
    "/api/logout": {"POST": UserEndpoint(handler=log_out, reply=LoginState)},
    "/api/session": {"GET": UserEndpoint(handler=show_session, reply=LoginState)},
    "/api/sessions": {"GET": UserEndpoint(handler=list_sessions, reply=LoginList)},
    "/api/sessions/{session}": {"DELETE": UserEndpoint(handler=end_session, reply=LoginView)},
    "/api/skills": {"GET": UserEndpoint(handler=list_skills, reply=SkillList)},
    "/api/tools": {"GET": UserEndpoint(handler=list_tools, query=ToolsQuery, reply=ToolSourceList)},
    "/api/waiting": {"GET": UserEndpoint(handler=list_waiting, reply=WaitingList)},
    "/mcp": {
        "POST": UserEndpoint(
            handler=serve_mcp,
            query=McpQuery,
            body=_Foreign,
            reply=_Foreign,
            events=_Foreign,
            acknowledges=True,
            failure=McpFailure,
        )
    },
    "/openai/deployments/{agent...}/chat/completions": {
        "POST": UserEndpoint(
            handler=complete_deployment,
            controls=chat_requests.CONTROLS,
            headers=_TURN,
            query=DeploymentQuery,
            body=DeploymentRequest,
            reply=SentReply,
            events=SentReply,
            last=_DONE,
        )
    },
    "/v1/chat/completions": {
        "POST": UserEndpoint(
            handler=complete_chat,
            controls=chat_requests.CONTROLS,
            headers=_TURN,
            body=ChatRequest,
            reply=SentReply,
            events=SentReply,
            last=_DONE,
        )
    },
    "/v1/embeddings": {
        "POST": UserEndpoint(handler=create_embeddings, body=EmbeddingRequest, reply=EmbeddingReply)
    },
    "/v1/bucket": {"GET": UserEndpoint(handler=show_bucket, reply=DialBucket)},
    "/v1/files": {
        "GET": UserEndpoint(handler=list_v1_files, query=FilesQuery, reply=_Foreign),
        "POST": UserEndpoint(handler=create_file, form=FileForm, reply=_Foreign),
    },
    # Before the paths of OpenAI and Anthropic, which it would match too.
    "/v1/files/dial-{path...}": {
        "GET": UserEndpoint(handler=load_dial_file, media=UNKNOWN_TYPE),
        "POST": UserEndpoint(handler=post_dial_file, form=DialForm, reply=DialFile),
        "PUT": UserEndpoint(handler=put_dial_file, form=DialForm, reply=DialFile),
        "DELETE": UserEndpoint(handler=delete_dial_file, reply=DialFile),
    },
    "/v1/files/{file}": {
        "GET": UserEndpoint(handler=show_v1_file, reply=_Foreign),
        "DELETE": UserEndpoint(handler=delete_v1_file, reply=_Foreign),
    },
    "/v1/files/{file}/content": {"GET": UserEndpoint(handler=load_v1_file, media=UNKNOWN_TYPE)},
    "/v1/messages": {
        "POST": UserEndpoint(
            handler=create_message,
            controls=messages_requests.CONTROLS,
            headers=_TURN,
            body=MessageRequest,
            reply=_Foreign,
            events=_Foreign,
        )
    },
    "/v1/messages/count_tokens": {
        "POST": UserEndpoint(
            handler=count_message_tokens,
            controls=messages_requests.CONTROLS,
            headers=_KEY,
            body=CountRequest,
            reply=TokensCounted,
        )
    },
    "/v1/models": {"GET": UserEndpoint(handler=list_models, reply=_Foreign)},
    "/v1/models/{model...}": {"GET": UserEndpoint(handler=show_model, reply=_Foreign)},
    "/v1/responses": {
        "POST": UserEndpoint(
            handler=create_response,
            controls=responses_requests.CONTROLS,
            headers=_TURN,
            body=ResponseRequest,
            reply=_Foreign,
            events=_Foreign,
            last=_DONE,
        )
    },
    "/v1/responses/compact": {
        "POST": UserEndpoint(
            handler=compact_response, headers=_KEY, body=ResponseRequest, reply=_Foreign
        )
    },
    "/v1/responses/input_tokens": {
        "POST": UserEndpoint(
            handler=count_input_tokens,
            controls=responses_requests.CONTROLS,
            headers=_KEY,
            body=ResponseRequest,
            reply=InputTokensCounted,
        )
    },
    "/v1/responses/{response}": {
        "GET": UserEndpoint(
            handler=show_response, query=ResponseQuery, reply=_Foreign, events=_Foreign, last=_DONE
        ),
        "DELETE": UserEndpoint(handler=delete_response, reply=_Foreign),
    },
    "/v1/responses/{response}/cancel": {
        "POST": UserEndpoint(handler=cancel_response, reply=_Foreign)
    },
    "/v1/responses/{response}/input_items": {
        "GET": UserEndpoint(handler=list_input_items, query=InputItemsQuery, reply=_Foreign)
    },
}
#: Placeholder for unknown paths in metrics and the log.
OTHER = "other"
_PATTERNS = {
    path: re.compile(re.sub(r"{\w+}", "([^/]+)", re.sub(r"{\w+\.\.\.}", "(.+)", path)), re.DOTALL)
    for path in ENDPOINTS
    if "{" in path
}


def match_path(path: str) -> tuple[str, Sequence[str]]:
    """Return the path in `ENDPOINTS` that matches, and the texts that fill its placeholders."""
    if path in ENDPOINTS:
        return path, ()
    for known, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(path):
            return known, found.groups()
    return OTHER, ()


def find_endpoint(exchange: HttpExchange) -> ApiOperation:
    """Return the endpoint for a request; `Rejected` if none matches."""
    path, exchange.arguments = match_path(exchange.path)
    # PostgreSQL cannot store NUL, and no name contains it.
    if path == OTHER or "\0" in exchange.path:
        raise Rejected(f"{exchange.path} not found", status=404, code="unknown_url")
    methods = ENDPOINTS[path]
    if exchange.method == "HEAD" and isinstance(methods.get("GET"), ServerEndpoint):
        # Uptime monitors send HEAD; the body is then not sent.
        return methods["GET"]
    if (endpoint := methods.get(exchange.method)) is None:
        exchange.headers_sent = (*exchange.headers_sent, (b"allow", ", ".join(methods).encode()))
        raise Rejected(
            f"{exchange.path} does not support {exchange.method}",
            status=405,
            code="method_not_allowed",
        )
    return endpoint


@cache
def _encode_document() -> bytes:
    return encode_document(ENDPOINTS)
