import os
import subprocess

from picture_server import serve_pictures

with serve_pictures() as address:
    environment = {
        **os.environ,
        "VIBE_LLMS_PROVIDERS__OPENAI__BASE_URL": address,
        "OPENAI_API_KEY": "sk-none-is-needed-here",
    }
    command = ["vibe-llms", "-m", "scripted/demo", "-T", "images", "--ta", "--save", "pictures"]
    subprocess.run([*command, "Generate image 'a cat'"], env=environment, check=True)

print(*os.listdir("pictures"))
