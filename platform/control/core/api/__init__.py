"""What every route shares: authentication, errors, paging, request ids."""
