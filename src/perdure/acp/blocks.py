"""Between the protocol's content blocks and perdure's message parts.

An editor sends text, images, links and embedded files; a session stores texts and images. What a
prompt only points at stays a pointer: nothing is opened or fetched for it.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from acp.helpers import image_block, text_block, tool_content
from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    ContentToolCallContent,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from perdure.records.images import checked_image
from perdure.records.messages import ImagePart, Part, TextPart, UserMessage

Block: TypeAlias = (
    TextContentBlock
    | ImageContentBlock
    | AudioContentBlock
    | ResourceContentBlock
    | EmbeddedResourceContentBlock
)
Shown: TypeAlias = TextContentBlock | ImageContentBlock


def message_of(blocks: Sequence[Block]) -> UserMessage:
    """Make the user message of a prompt; its parts are the blocks, in order."""
    return UserMessage(content=tuple(_part(block) for block in blocks))


def _part(block: Block) -> Part:
    match block:
        case TextContentBlock():
            return TextPart(text=block.text)
        case ImageContentBlock():
            return _image(block.data, block.uri or "an image of the prompt")
        case ResourceContentBlock():
            return TextPart(text=f"[{block.name}]({block.uri})")
        case EmbeddedResourceContentBlock(resource=TextResourceContents() as file):
            return TextPart(text=f"<file uri={file.uri!r}>\n{file.text}\n</file>")
        case EmbeddedResourceContentBlock(resource=BlobResourceContents() as file):
            if (file.mime_type or "").startswith("image/"):
                return _image(file.blob, file.uri)
            return TextPart(text=f"[{file.uri} was left out: no text and no image]")
        case _:
            # No audio was offered at initialization; a client that sends it is told.
            return TextPart(text="[audio was left out: this agent takes texts and images]")


def _image(data: str, source: str) -> Part:
    # The digest is made from the bytes; what the block says of them is not believed (PV-20).
    return checked_image(ImagePart(mime="", sha256="", data=data), source)


def shown(parts: Iterable[Part]) -> list[Shown]:
    """Answer the blocks that show texts and images; what else a message holds is left out."""
    blocks: list[Shown] = []
    for part in parts:
        if isinstance(part, TextPart) and part.text:
            blocks.append(text_block(part.text))
        elif isinstance(part, ImagePart) and isinstance(part.data, str):
            blocks.append(image_block(part.data, part.mime))
    return blocks


def tool_contents(parts: Iterable[Part]) -> list[ContentToolCallContent]:
    """Answer the same as the content of a tool call."""
    return [tool_content(block) for block in shown(parts)]
