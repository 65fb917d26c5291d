"""Discovery: assigns a stage to untagged requests by the text that their prompts have in common."""
