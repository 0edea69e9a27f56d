import json

from iddpm.training.spent import Spent


def test_sums_go_on_over_sessions_of_different_size():
    spent = Spent(flops_per_image=10.0)
    spent.add_images(4)
    spent.add_seconds(2.0, devices=1)
    later = Spent(flops_per_image=10.0)
    later.load(json.loads(json.dumps(spent.to_json())))
    later.add_images(3)
    later.add_seconds(1.5, devices=4)
    assert later.to_json() == {"seconds": 3.5, "device_seconds": 8.0, "images": 7, "flops": 70.0}
