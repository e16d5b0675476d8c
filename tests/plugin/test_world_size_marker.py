"""``world_size``: which tests a marker makes, under which ids, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Ids = Callable[..., list[str]]


def _names(ids: list[str]) -> list[str]:
    return [node_id.partition("::")[2] for node_id in ids]


def test_one_test_a_size_and_world_first_in_a_combined_id(
    pytester: pytest.Pytester, ids_of: Ids
) -> None:
    pytester.makepyfile(
        test_ids="""
        import pytest

        @pytest.mark.world_size(2, 4)
        def test_sizes():
            pass

        @pytest.mark.world_size(2)
        @pytest.mark.parametrize("layers", [1, 8])
        @pytest.mark.parametrize("dtype", ["bf16"])
        def test_combined(layers, dtype):
            pass

        @pytest.fixture(params=["adam"])
        def optimizer(request):
            return request.param

        @pytest.mark.world_size(2)
        def test_parametrized_fixture(optimizer):
            pass
        """
    )

    assert _names(ids_of()) == [
        "test_sizes[world2]",
        "test_sizes[world4]",
        "test_combined[world2-bf16-1]",
        "test_combined[world2-bf16-8]",
        "test_parametrized_fixture[world2-adam]",
    ]


def test_ids_carry_whatever_differs(pytester: pytest.Pytester, ids_of: Ids) -> None:
    pytester.makepyfile(
        test_ids="""
        import pytest

        @pytest.mark.world_size(2, backend="nccl")
        def test_backend():
            pass

        @pytest.mark.world_size(2, backend="gloo")
        def test_default_backend():
            pass

        @pytest.mark.world_size(2, device="cuda")
        def test_device():
            pass

        @pytest.mark.world_size(2, device="cuda", backend="nccl")
        def test_device_and_backend():
            pass

        @pytest.mark.world_size(mesh={"dp": 2, "tp": 2})
        def test_mesh():
            pass

        @pytest.mark.world_size(4, 8, mesh={"dp": -1, "tp": 2})
        def test_free_axis():
            pass

        @pytest.mark.world_size(2, 4, mesh={"dp": -1})
        def test_only_free_axis():
            pass
        """
    )

    ids = _names(ids_of())

    assert ids == [
        "test_backend[world2-nccl]",
        "test_default_backend[world2]",
        "test_device[world2-cuda]",
        "test_device_and_backend[world2-cuda-nccl]",
        "test_mesh[dp2xtp2]",
        "test_free_axis[dp2xtp2]",
        "test_free_axis[dp4xtp2]",
        "test_only_free_axis[dp2]",
        "test_only_free_axis[dp4]",
    ]
    assert not [node_id for node_id in ids if "=" in node_id], "-k can't parse it"


def test_device_cuda_adds_the_cuda_mark(pytester: pytest.Pytester, ids_of: Ids) -> None:
    pytester.makepyfile(
        test_cuda="""
        import unittest
        import pytest

        @pytest.mark.world_size(2)
        @pytest.mark.world_size(2, device="cuda")
        def test_function():
            pass

        class TestMethods(unittest.TestCase):
            @pytest.mark.world_size(2)
            @pytest.mark.world_size(2, device="cuda")
            def test_method(self):
                pass
        """
    )

    assert _names(ids_of("-m", "cuda")) == [
        "test_function[world2-cuda]",
        "TestMethods::test_method[world2-cuda]",
    ]
    assert _names(ids_of("-m", "not cuda")) == [
        "test_function[world2]",
        "TestMethods::test_method[world2]",
    ]


def test_markers_of_one_level_are_united_and_a_closer_level_replaces_them(
    pytester: pytest.Pytester, ids_of: Ids
) -> None:
    pytester.makepyfile(
        test_levels="""
        import pytest

        pytestmark = [pytest.mark.world_size(2), pytest.mark.world_size(3)]

        def test_module():
            pass

        @pytest.mark.world_size(8)
        def test_function_replaces_module():
            pass

        @pytest.mark.world_size(mesh={"tp": 2})
        @pytest.mark.world_size(2, 4)
        @pytest.mark.world_size(4)
        def test_union():
            pass

        @pytest.mark.world_size(5)
        class TestClass:
            def test_class_replaces_module(self):
                pass

            @pytest.mark.world_size(6)
            def test_function_replaces_class(self):
                pass

            class TestNested:
                def test_nested_inherits(self):
                    pass

        class TestWithoutMarker:
            def test_module_applies(self):
                pass
        """
    )

    ids = _names(ids_of())

    assert sorted(ids) == sorted(
        [
            "test_module[world2]",
            "test_module[world3]",
            "test_function_replaces_module[world8]",
            "test_union[world4]",
            "test_union[world2]",
            "test_union[tp2]",
            "TestClass::test_class_replaces_module[world5]",
            "TestClass::test_function_replaces_class[world6]",
            "TestClass::TestNested::test_nested_inherits[world5]",
            "TestWithoutMarker::test_module_applies[world2]",
            "TestWithoutMarker::test_module_applies[world3]",
        ]
    )


def test_a_union_is_in_the_order_of_its_source(pytester: pytest.Pytester, ids_of: Ids) -> None:
    pytester.makepyfile(
        test_order="""
        import pytest

        @pytest.mark.world_size(2)
        @pytest.mark.world_size(4)
        def test_decorators():
            pass
        """
    )

    assert _names(ids_of()) == ["test_decorators[world2]", "test_decorators[world4]"]


def test_a_base_class_and_its_child_are_one_level(pytester: pytest.Pytester, ids_of: Ids) -> None:
    # pytest itself unites the marks of a class and its bases: there is one class node.
    pytester.makepyfile(
        test_bases="""
        import pytest

        @pytest.mark.world_size(2)
        class Base:
            def test_inherited(self):
                pass

        class TestChild(Base):
            pass
        """
    )

    assert _names(ids_of()) == ["TestChild::test_inherited[world2]"]


@pytest.mark.parametrize(
    ("hook", "marker", "seen"),
    [
        ("itemcollected", 'max_memory(params="1 B")', "it carries @pytest.mark.max_memory"),
        ("modifyitems", 'max_memory(params="1 B")', "it carries @pytest.mark.max_memory"),
        ("modifyitems", "world_size(2)", "shardcheck: 1 world, 2 ranks"),
    ],
)
def test_a_marker_that_a_hook_adds_is_not_ignored(
    pytester: pytest.Pytester, hook: str, marker: str, seen: str
) -> None:
    hooks = {
        "itemcollected": "def pytest_itemcollected(item):\n    item.add_marker(MARK)\n",
        "modifyitems": "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n        item.add_marker(MARK)\n",
    }
    pytester.makeconftest(f"import pytest\n\nMARK = pytest.mark.{marker}\n\n{hooks[hook]}")
    pytester.makepyfile("def test_it():\n    pass\n")

    result = pytester.runpytest("-q", "-p", "no:randomly")

    # A folder's conftest often marks its tests. One that was to run in a world, or to be held to a
    # ceiling, must not pass as an ordinary one.
    assert seen in result.stdout.str() + result.stderr.str()


def test_unittest_methods_are_cloned(pytester: pytest.Pytester, ids_of: Ids) -> None:
    pytester.makepyfile(
        test_unittest="""
        import unittest
        import pytest

        class TestMethods(unittest.TestCase):
            @pytest.mark.world_size(2, 4)
            def test_method(self):
                pass

            @pytest.mark.world_size(mesh={"dp": 2, "tp": 2})
            def test_mesh(self):
                pass

            def test_plain(self):
                pass

        @pytest.mark.world_size(3)
        class TestClass(unittest.IsolatedAsyncioTestCase):
            async def test_async(self):
                pass
        """
    )

    ids = _names(ids_of())

    assert ids == [
        "TestMethods::test_mesh[dp2xtp2]",
        "TestMethods::test_method[world2]",
        "TestMethods::test_method[world4]",
        "TestMethods::test_plain",
        "TestClass::test_async[world3]",
    ]
    assert _names(ids_of("test_unittest.py::TestMethods::test_method[world4]")) == [
        "TestMethods::test_method[world4]"
    ]
    assert _names(ids_of("-k", "world2")) == ["TestMethods::test_method[world2]"]


def test_unittest_methods_are_selected_without_their_world(
    pytester: pytest.Pytester, ids_of: Ids
) -> None:
    pytester.makepyfile(
        test_both="""
        import unittest
        import pytest

        class TestMethods(unittest.TestCase):
            @pytest.mark.world_size(2, 4)
            def test_method(self):
                pass

        @pytest.mark.world_size(2, 4)
        def test_function():
            pass
        """
    )

    # As with parametrize: the id without brackets means all of them.
    assert _names(ids_of("test_both.py::test_function")) == [
        "test_function[world2]",
        "test_function[world4]",
    ]
    assert _names(ids_of("test_both.py::TestMethods::test_method")) == [
        "TestMethods::test_method[world2]",
        "TestMethods::test_method[world4]",
    ]


def test_selecting_by_node_id_and_keyword(pytester: pytest.Pytester, ids_of: Ids) -> None:
    pytester.makepyfile(
        test_select="""
        import pytest

        @pytest.mark.world_size(2, 4)
        @pytest.mark.world_size(mesh={"dp": 2, "tp": 2})
        @pytest.mark.world_size(2, backend="nccl")
        @pytest.mark.parametrize("value", [1])
        def test_it(value):
            pass
        """
    )

    assert _names(ids_of("test_select.py::test_it[world4-1]")) == ["test_it[world4-1]"]
    assert _names(ids_of("-k", "dp2xtp2")) == ["test_it[dp2xtp2-1]"]
    assert _names(ids_of("-k", "nccl")) == ["test_it[world2-nccl-1]"]
    assert sorted(_names(ids_of("-k", "world2 and not nccl"))) == ["test_it[world2-1]"]
    # `-m` can look at keyword arguments of a mark.
    assert _names(ids_of("-m", "world_size and not cuda")) != []


def test_pytest_param_can_carry_an_expectation(pytester: pytest.Pytester, ids_of: Ids) -> None:
    pytester.makepyfile(
        test_param="""
        import pytest

        @pytest.mark.parametrize(
            "layers",
            [
                1,
                pytest.param(3, marks=pytest.mark.max_memory(params="1 MB")),
            ],
        )
        @pytest.mark.world_size(4)
        def test_it(layers):
            pass
        """
    )

    assert _names(ids_of()) == ["test_it[world4-1]", "test_it[world4-3]"]


def test_a_world_in_pytest_param_is_not_ignored_where_the_function_has_one(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(4)
        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.world_size(2))])
        def test_it(n):
            pass
        """
    )

    result = pytester.runpytest("--collect-only", "-q")

    # Both are of the function's level. Refused or united, but never dropped without a word.
    text = result.stdout.str()
    assert "@pytest.mark.world_size: " in text or "[world2-2]" in text


def test_pytest_param_alone_makes_a_world_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.world_size(2))])
        def test_it(n, world):
            pass
        """
    )

    result = pytester.runpytest("--collect-only", "-q")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::test_it?1?", "1 test collected*"])


def test_pytest_param_with_several_worlds_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.world_size(2, 4))])
        def test_it(n):
            pass
        """
    )

    result = pytester.runpytest("--collect-only", "-q")

    assert result.ret != 0
    result.stdout.fnmatch_lines(
        ["*test_it*@pytest.mark.world_size: *accepted there: one world*world2, world4*"]
    )


def test_a_class_that_launches_its_own_ranks_is_left_alone(
    pytester: pytest.Pytester, ids_of: Ids
) -> None:
    # DeepSpeed's DistributedTest: `world_size` is its own class attribute and its own mark.
    pytester.makepyfile(
        test_deepspeed="""
        import pytest

        class DistributedTest:
            is_dist_test = True
            world_size = 2

        class TestTheirs(DistributedTest):
            world_size = 4

            @pytest.mark.world_size(3)
            def test_method(self):
                pass

            @pytest.mark.world_size([2, 4])
            def test_arguments_are_not_ours(self):
                pass

            @pytest.mark.parametrize("stage", [1])
            def test_parametrized(self, stage):
                pass

        class TestOurs:
            is_dist_test = False

            @pytest.mark.world_size(2)
            def test_method(self):
                pass
        """
    )

    assert _names(ids_of()) == [
        "TestTheirs::test_method",
        "TestTheirs::test_arguments_are_not_ours",
        "TestTheirs::test_parametrized[1]",
        "TestOurs::test_method[world2]",
    ]
    result = pytester.runpytest("-k", "TestTheirs", "-p", "no:randomly")
    result.assert_outcomes(passed=3)
    assert "shardcheck:" not in result.stdout.str()


REFUSED = [
    ("world_size()", "no size", "at least one size"),
    ("world_size(0)", "size 0", "whole numbers above 0"),
    ("world_size(-2)", "size -2", "whole numbers above 0"),
    ("world_size(True)", "size True", "whole numbers above 0"),
    ("world_size(2.0)", "size 2.0", "whole numbers above 0"),
    ("world_size('2')", "size '2'", "whole numbers above 0"),
    ("world_size([2, 4])", "size [2, 4]", "whole numbers above 0"),
    ("world_size(None)", "size None", "whole numbers above 0"),
    ("world_size(2, backnd='gloo')", "unknown argument 'backnd'", "did you mean 'backend'"),
    ("world_size(size=2)", "unknown argument 'size'", "backend, device, mesh"),
    ("world_size(2, backend=3)", "backend=3", "such as 'gloo'"),
    ("world_size(2, backend='')", "backend=''", "such as 'gloo'"),
    ("world_size(2, device='gpu')", "device='gpu'", "'cpu' or 'cuda'"),
    ("world_size(2, device=0)", "device=0", "'cpu' or 'cuda'"),
    ("world_size(2, device=['cpu'])", "device=['cpu']", "'cpu' or 'cuda'"),
    ("world_size(2, timeout=0)", "timeout=0", "seconds above 0"),
    ("world_size(2, timeout=-1)", "timeout=-1", "seconds above 0"),
    ("world_size(2, timeout='9')", "timeout='9'", "seconds above 0"),
    ("world_size(2, timeout=True)", "timeout=True", "seconds above 0"),
    ("world_size(2, timeout=float('nan'))", "timeout=nan", "seconds above 0"),
    ("world_size(2, timeout=float('inf'))", "timeout=inf", "seconds above 0"),
    ("world_size(2, mesh=2)", "mesh=2", "mapping from axis names"),
    ("world_size(2, mesh={})", "mesh={}", "mapping from axis names"),
    ("world_size(2, mesh=('dp', 'tp'))", "mesh=('dp', 'tp')", "mapping from axis names"),
    ("world_size(mesh={'dp': 0})", "'dp' of length 0", "mapping from axis names"),
    ("world_size(mesh={'dp': -2})", "'dp' of length -2", "mapping from axis names"),
    ("world_size(mesh={'dp': True})", "'dp' of length True", "mapping from axis names"),
    ("world_size(mesh={'dp': '2'})", "'dp' of length '2'", "mapping from axis names"),
    ("world_size(mesh={1: 2})", "axis 1", "names such as dp"),
    ("world_size(mesh={'a=b': 2})", "'a=b'", "names such as dp"),
    ("world_size(mesh={'dp': -1})", "mesh={'dp': -1}", "needs a size"),
    ("world_size(4, mesh={'dp': -1, 'tp': -1})", "several axes of -1", "one may be -1"),
    ("world_size(4, mesh={'dp': 2})", "size 4 with mesh={'dp': 2}", "a size that is 2"),
    ("world_size(3, mesh={'dp': -1, 'tp': 2})", "size 3", "a multiple of 2"),
    ("world_size(2, simulate=1)", "simulate=1", "True or False"),
    ("world_size(2, simulate=True, device='cuda')", "device='cuda'", "Leave device= out"),
    ("world_size(2, ranks=[0])", "ranks=[0]", "ranks= with simulate=True"),
    ("world_size(2, simulate=True, ranks=[])", "ranks=[]", "numbers of ranks of the world of 2"),
    ("world_size(2, simulate=True, ranks=[2])", "ranks=[2]", '"all", or numbers'),
    ("world_size(4, 2, simulate=True, ranks=-3)", "ranks=-3", '"all", or numbers'),
    ("world_size(2, simulate=True, ranks=[True])", "ranks=[True]", '"all", or numbers'),
    ("world_size(2, simulate=True, ranks='some')", "ranks='some'", '"all", or numbers'),
]


@pytest.mark.parametrize("base", ["object", "unittest.TestCase"])
def test_a_wrong_argument_is_a_usage_error_at_collection(
    pytester: pytest.Pytester, base: str
) -> None:
    for number, (marker, _, _) in enumerate(REFUSED):
        pytester.makepyfile(
            **{
                f"test_{number}": f"""
                import unittest
                import pytest

                class TestIt({base}):
                    @pytest.mark.{marker}
                    def test_wrong(self):
                        pass
                """
            }
        )

    result = pytester.runpytest("-q", "--collect-only", "-p", "no:randomly")

    wrong = []
    for number, (marker, given, accepted) in enumerate(REFUSED):
        where = f"test_{number}.py::TestIt::test_wrong: @pytest.mark.world_size: "
        lines = [line for line in result.outlines if line.startswith(where)]
        if len(lines) != 1 or given not in lines[0] or accepted not in lines[0]:
            wrong.append((marker, lines))
    assert not wrong
    assert "Traceback" not in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()


def test_two_different_worlds_with_one_id_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(2)
        @pytest.mark.world_size(2, timeout=5)
        def test_it():
            pass
        """
    )

    result = pytester.runpytest("--collect-only")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_it: @pytest.mark.world_size: two different worlds*world2*"])


def test_simulated_worlds_have_ids_of_their_own_and_few_ranks(
    pytester: pytest.Pytester, ids_of: Ids
) -> None:
    pytester.makepyfile(
        test_ids="""
        import pytest

        @pytest.mark.world_size(2, 4)
        @pytest.mark.world_size(4, 1024, simulate=True)
        def test_both():
            pass

        @pytest.mark.world_size(mesh={"pp": 4, "dp": 16}, simulate=True)
        def test_mesh():
            pass

        @pytest.mark.world_size(64, simulate=True, ranks="all")
        def test_all():
            pass
        """
    )

    assert sorted(_names(ids_of("--shardcheck-max-ranks=4", "-k", "not all"))) == [
        "test_both[world1024-simulated]",
        "test_both[world2]",
        "test_both[world4-simulated]",
        "test_both[world4]",
        "test_mesh[pp4xdp16-simulated]",
    ]
    result = pytester.runpytest("--collect-only", "--shardcheck-max-ranks=4", "-p", "no:randomly")
    result.stdout.fnmatch_lines(["*test_all*: a world of 64 ranks was asked for; at most 4 may*"])


def test_two_items_with_one_id_are_refused(pytester: pytest.Pytester) -> None:
    # A user's own method is called as one of our clones.
    pytester.makepyfile(
        """
        import unittest
        import pytest

        class TestMethods(unittest.TestCase):
            @pytest.mark.world_size(2)
            def test_it(self):
                pass

        setattr(TestMethods, "test_it[world2]", lambda self: None)
        """
    )

    result = pytester.runpytest("--collect-only")

    assert result.ret != 0
    result.stdout.fnmatch_lines(["*test_it*world2*"])


def test_every_wrong_marker_of_a_file_is_told_at_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(prams="1 MB")
        def test_first():
            pass

        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(params="1 MX")
        def test_second():
            pass

        def test_right():
            pass
        """
    )

    result = pytester.runpytest("-q")

    assert result.ret != 0
    result.stdout.fnmatch_lines(["*test_first*max_memory*prams*did you mean 'params'*"])
    result.stdout.fnmatch_lines(["*test_second*max_memory*params='1 MX'*"])
    assert "worlds, " not in result.stdout.str(), "a rank was started although a marker is wrong"


def test_a_measuring_marker_needs_a_world(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.max_memory(params="1 MB")
        def test_it():
            pass
        """
    )

    result = pytester.runpytest("-q")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*test_it: it carries @pytest.mark.max_memory*", "*@pytest.mark.world_size(2)*"]
    )


def test_a_world_size_that_a_narrowing_names_must_exist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(2, 4)
        @pytest.mark.max_memory(params="1 MB", world_size=8)
        def test_it():
            pass
        """
    )

    result = pytester.runpytest("-q")

    assert result.ret != 0
    result.stdout.fnmatch_lines(["*test_it*max_memory*world_size=8*2*4*"])
