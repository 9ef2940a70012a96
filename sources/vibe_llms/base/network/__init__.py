"""The network: offline mode, permitted addresses, proxies, and certificates."""
