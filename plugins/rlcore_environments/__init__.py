"""Episodes of several turns: a policy talks to an environment or calls tools, and is trained on what it wrote."""
