"""The network: what is refused, which addresses are permitted, proxies and certificates."""
