"""The former place of `OrganizationView`."""

from control.api.auth import OrganizationView as OrganizationView
