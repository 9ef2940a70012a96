"""OpenAI's two interfaces, and servers that speak one of them; their rows name the subpackages.

`chat_completions` is spoken by nearly all compatible servers, `responses` is OpenAI's own choice.
"""
