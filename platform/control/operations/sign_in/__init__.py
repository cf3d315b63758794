"""Sign-in of organizations' members: invitations, passwords, a second factor, OpenID Connect."""
