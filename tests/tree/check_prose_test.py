"""Tests scripts/check_prose.py: what it finds in comments, and which of them a change answers for."""
import contextlib
import importlib.util
import io
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_prose.py"
SPEC = importlib.util.spec_from_file_location("check_prose", SCRIPT)
prose = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prose)

GOOD = """// Scales a ring's inter-node bytes and its message count. Bytes of those ranks follow.
int a = 1'000;  // bytes
const char* text = "// Of messages: what is said";  // `products` and "products" stay as they are
const char* raw = R"(// What comes to be said)";
// These four fields are independent. Dot products stay, and the ranks have not yet met.
/* A block. */
"""


def found(name, text):
    return [(line, habit) for line, _, _, habit, _ in prose.findings(name, text)]


class Findings(unittest.TestCase):
    def test_good_prose_has_none(self):
        self.assertEqual(found("a.h", GOOD), [])

    def test_each_habit(self):
        for comment, habit in [
                ("Of messages: the ranks of groups.", "clause opening"),
                ("What of the states DeepSpeed lacks.", "clause opening"),
                ("with a unit", "clause opening"),
                ("Sends. These are sums.", "no noun"),
                ("Sends. Which is slow.", "no noun"),
                ("Sends. Those of a ring wait.", "no noun"),
                ("Runs beside the copy.", "own word"),
                ("Counts the products of a layer.", "own word"),
                ("It has not the states.", "own word"),
                ("A host that goes without.", "own word"),
                ("The bytes come to one page.", "vague verb"),
                ("As the file says.", "vague verb"),
                ("The size that was asked for.", "vague verb")]:
            with self.subTest(comment):
                for name, mark in [("a.cu", "//"), ("a.sh", "#"), ("a.py", "#"), ("CMakeLists.txt", "#")]:
                    self.assertEqual(found(name, f"\n{mark} {comment}\n"), [(2, habit)], name)

    def test_only_the_start_of_a_comment_is_an_opening(self):
        self.assertEqual(found("a.h", "// Sends the bytes\n// of a rank. With one rank it returns.\n"), [])
        self.assertEqual(found("a.h", "int a;  // the bytes\n        // of a rank\n"), [])
        self.assertEqual(found("a.h", "// Bytes.\nint a;  // of a rank\n"), [(2, "clause opening")])
        self.assertEqual(found("a.h", "int a;  // bytes\n// Of a rank.\n"), [(2, "clause opening")])

    def test_a_finding_names_the_line_of_its_sentence(self):
        self.assertEqual(found("a.h", "// Sends. It\n// waits. As the\n// file says.\n"), [(2, "vague verb")])

    def test_python_strings_are_no_comments_but_docstrings_are(self):
        self.assertEqual(found("a.py", 'A = """Of words."""\n'), [])
        self.assertEqual(found("a.py", 'def f():\n    """Of words."""\n'), [(2, "clause opening")])

    def test_shell_words_with_a_hash_are_no_comments(self):
        self.assertEqual(found("a.sh", 'echo "a # of b" ${#files[@]}\necho  # of b\n'), [(2, "clause opening")])


class Changes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(setattr, prose, "ROOT", prose.ROOT)
        prose.ROOT = pathlib.Path(folder.name)

    def git(self, *words):
        try:
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=prose.ROOT,
                           check=True, capture_output=True)
        except FileNotFoundError:
            self.skipTest("no git")

    def commit(self, text, subject):
        (prose.ROOT / "a.h").write_text(text)
        self.git("add", "a.h")
        self.git("commit", "-m", subject)

    def run_check(self, check, *words):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = check(*words)
        return status, said.getvalue()

    def test_only_comments_with_an_added_line_count(self):
        self.git("init")
        old = "// Of old.\nint a;\n\n// What of it.\n// Another line.\nint b;\n"
        self.commit(old, "a: begin")
        self.commit(old + "int c;\n", "a: add code")
        self.assertEqual(self.run_check(prose.check_since, "HEAD~1")[0], 0)
        self.commit(old.replace("Another", "A new") + "int c;  // of c\n", "a: touch two comments")
        status, said = self.run_check(prose.check_since, "HEAD~1")
        self.assertEqual(status, 1)
        self.assertEqual(said, "a.h:4: clause opening: What of it.\na.h:7: clause opening: of c\n")

    def test_subjects(self):
        self.git("init")
        self.commit("int a;\n", "no area is checked before the first commit")
        for number, subject in enumerate(["planner/search: search bucket sizes", "cost_models, core: one clock"]):
            self.commit(f"int b{number};\n", subject)
            self.assertEqual(self.run_check(prose.check_commits, "HEAD~1..")[0], 0)
        self.commit("int c;\n", "Buckets are searched")
        self.assertEqual(self.run_check(prose.check_commits, "HEAD~1..")[0], 1)
        self.commit("int d;\n", "planner: " + "x" * 64)
        status, said = self.run_check(prose.check_commits, "HEAD~1..")
        self.assertEqual(status, 1)
        self.assertIn("73 characters", said)

    def test_a_missing_commit_passes_with_a_message(self):
        for check, words in [(prose.check_since, "HEAD~1"), (prose.check_commits, "HEAD~1..HEAD")]:
            status, said = self.run_check(check, words)  # no repository is here
            self.assertEqual(status, 0)
            self.assertIn("not checked", said)


if __name__ == "__main__":
    unittest.main()
