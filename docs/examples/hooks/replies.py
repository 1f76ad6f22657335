def short(replies):
    return [-len(reply) / 10 for reply in replies]
