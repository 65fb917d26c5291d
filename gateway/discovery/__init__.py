"""Discovery of stages for untagged requests, by the text that their prompts have in common."""
