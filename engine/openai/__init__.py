"""The parts of OpenAI's protocol that a body is made of; `engine.protocol` puts them together."""
