"""The agent of the Agent Client Protocol (ACP), version 1, over standard streams.

Source of the format: agentclientprotocol/agent-client-protocol, `schema/v1/schema.json`, 1.7.0.
"""
