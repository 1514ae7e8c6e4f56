package validate

import (
	"strings"
	"testing"
)

func TestCheckCEL(t *testing.T) {
	for _, text := range []string{"true", "response.code >= 400", "!has(request.headers['a'])",
		`request.url_path.startsWith("/a") || request.method in ["GET", 'HEAD']`,
		"a ? b : c ? d : e", "-1 + 2u * 0x1f - .5e3", `r"\d" + b'\x00' + """a "b" c"""`,
		"connection.mtls && -a.b[c].d(1, 2).e", "{'a': 1, 'b': [1, 2, ], }", "{}", "[]",
		"a.b.C{d: 1}", "(((1)))", "// comment\ntrue", "xds.filter_state['a.b'].c == null",
		"size(a)", ".a.b", "[1, 2].exists(x, x > 1)", "!!a", "- -1"} {
		if err := checkCEL(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", " ", "a b", "a &", "a = b", "'a", "a.", "a[", "a[]", "(", ")",
		"a ? b", "a.in == b", "f(", "f(a", "f(a b)", "{'a'}", "[1 2]", "in", "for", "a..b", "#", "\"\n\"",
		"a &&", "&& a", "==", "`", "\\", strings.Repeat("(", 100) + strings.Repeat(")", 100)} {
		if err := checkCEL(text); err == nil {
			t.Errorf("%s: accepted", text)
		}
	}
}

func FuzzCheckCEL(f *testing.F) {
	f.Add("response.code >= 400 ? a['b'] : [1u, 'c']")
	f.Fuzz(func(_ *testing.T, text string) { _ = checkCEL(text) })
}
