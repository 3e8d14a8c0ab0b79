"""What a task works in: its directory, repositories, environment, skills, brief and prompt."""
