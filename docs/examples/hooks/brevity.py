def brevity(outputs):
    return [-len(output) for output in outputs]
