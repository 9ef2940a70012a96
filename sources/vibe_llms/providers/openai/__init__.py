"""OpenAI's two interfaces, and servers that speak one of them; their rows name the subpackages.

Nearly all compatible servers speak `chat_completions`; OpenAI recommends `responses`.
"""
