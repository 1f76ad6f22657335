import rlcore

rlcore.train(config="imitate.yaml", observers=[print])
