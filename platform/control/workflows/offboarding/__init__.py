"""Exports of everything that an organization has, and deletion of organizations."""
