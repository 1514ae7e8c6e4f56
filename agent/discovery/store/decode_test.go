package store

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

func read(content string) document {
	r := &reader{file: "f.yaml", namespace: "ns", validate: func(*object.Object) []object.Finding {
		return nil
	}}
	return r.read([]byte(content), 1)
}

// readSpec returns the decoded spec of an object. The spec is indented by two.
func readSpec(t *testing.T, kind, spec string) proto.Message {
	t.Helper()
	d := read("apiVersion: networking.istio.io/v1\nkind: " + kind +
		"\nmetadata: {name: x}\nspec:\n" + spec)
	if len(d.problems) > 0 || len(d.objects) != 1 {
		t.Fatalf("problems %v", d.problems)
	}
	return d.objects[0].Spec
}

func TestDecode_LikeKubectlAndProtobuf(t *testing.T) {
	for _, test := range []struct {
		name, kind, yaml string
		want             proto.Message
	}{
		{"YAML 1.1 booleans and octals", "DestinationRule", `
  host: a
  trafficPolicy:
    connectionPool: {http: {useClientProtocol: yes, maxRetries: 010}, tcp: {maxConnections: 1_000}}
    outlierDetection: {splitExternalLocalOriginErrors: on, consecutive5xxErrors: 0x10}`,
			&networking.DestinationRule{Host: "a", TrafficPolicy: &networking.TrafficPolicy{
				ConnectionPool: &networking.ConnectionPoolSettings{
					Http: &networking.ConnectionPoolSettings_HTTPSettings{UseClientProtocol: true,
						MaxRetries: 8},
					Tcp: &networking.ConnectionPoolSettings_TCPSettings{MaxConnections: 1000}},
				OutlierDetection: &networking.OutlierDetection{SplitExternalLocalOriginErrors: true,
					Consecutive_5XxErrors: wrapperspb.UInt32(16)}}}},
		{"durations, nulls and names of both forms", "VirtualService", `
  hosts: [a]
  gateways: null
  http:
  - timeout: 1m30s
    retries: {attempts: 3, per_try_timeout: 250ms, retryOn: ~}
    route: [{destination: {host: a}}]`,
			&networking.VirtualService{Hosts: []string{"a"}, Http: []*networking.HTTPRoute{
				{Timeout: durationpb.New(90 * time.Second),
					Retries: &networking.HTTPRetry{Attempts: 3,
						PerTryTimeout: durationpb.New(250 * time.Millisecond)},
					Route: []*networking.HTTPRouteDestination{
						{Destination: &networking.Destination{Host: "a"}}}}}}},
		{"anchors and merge keys", "ServiceEntry", `
  hosts: [a.test]
  resolution: STATIC
  ports: []
  endpoints:
  - &one {address: 10.0.0.1, weight: 3, labels: {a: b}}
  - {<<: *one, address: 10.0.0.2}
  - {<<: [{weight: 5}, *one]}`,
			&networking.ServiceEntry{Hosts: []string{"a.test"},
				Resolution: networking.ServiceEntry_STATIC, Endpoints: []*networking.WorkloadEntry{
					{Address: "10.0.0.1", Weight: 3, Labels: map[string]string{"a": "b"}},
					{Address: "10.0.0.2", Weight: 3, Labels: map[string]string{"a": "b"}},
					{Address: "10.0.0.1", Weight: 5, Labels: map[string]string{"a": "b"}}}}},
		{"an empty match is there", "VirtualService", `
  http: [{match: [{headers: {x: {}}}], route: [{destination: {host: a}, weight: 1e2}]}]`,
			&networking.VirtualService{Http: []*networking.HTTPRoute{
				{Match: []*networking.HTTPMatchRequest{
					{Headers: map[string]*networking.StringMatch{"x": {}}}},
					Route: []*networking.HTTPRouteDestination{
						{Destination: &networking.Destination{Host: "a"}, Weight: 100}}}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, readSpec(t, test.kind, strings.TrimPrefix(test.yaml,
				"\n")), protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDecode_RefusesTwoOfAOneof(t *testing.T) {
	d := read("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: " +
		"x}\nspec:\n  http:\n  - match:\n    - uri:\n        exact: /a\n        prefix: /b\n")
	if len(d.problems) != 1 || d.problems[0].Line != 9 || !strings.Contains(d.problems[0].Message,
		"excludes exact") {
		t.Errorf("problems %v", d.problems)
	}
}

func TestDecode_LimitsAliases(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for _, pair := range []string{"ab", "bc", "cd", "de", "ef", "fg", "gh", "hi"} {
		bomb += pair[1:] + ": &" + pair[1:] + " [" + strings.TrimSuffix(
			strings.Repeat("*"+pair[:1]+",", 10), ",") + "]\n"
	}
	bomb += "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: " +
		"x}\nspec: {hosts: [*i], http: *i, tcp: *i, tls: *i}\n"
	started := time.Now()
	d := read(bomb)
	if len(d.problems) == 0 || len(d.problems) > 3*maxProblems {
		t.Errorf("%d problems", len(d.problems))
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	// an alias that refers to itself
	read("a: &a [*a]\nkind: *a\nspec: {hosts: *a}\nmetadata: {name: x}\n")
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		entry("a", "a.test"), entry("a", "a.test") + "---\n" + entry("b", "b.test"), "a: [",
		"---\n---\n", "kind: List\nitems:\n- {}\n- kind: x\n",
		"a: &a [*a]\nspec: *a",
		"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: x}\nspec:\n" +
			"  hosts: [a.test]\n  http:\n  - match: [{uri: {regex: \"(\"}}]\n    timeout: 5\n    route:\n" +
			"    - destination: {host: a.test, port: {number: 99999}}\n      weight: -1\n",
		"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x}\nspec:\n" +
			"  selector: {a: b}\n  servers:\n  - port: {number: 443, name: s, protocol: HTTPS}\n" +
			"    hosts: ['*']\n    tls: {mode: SIMPLE}\n",
		"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: x}\n" +
			"spec: {host: a, trafficPolicy: {loadBalancer: {consistentHash: {maglev: {tableSize: " +
			"18446744073709551615}}}}, subsets: [null]}\n",
		"<<: {kind: List}\n<<: [{items: []}]\n? [a]\n: b\n", "\xff\xfe",
		"%YAML 1.1\n---\na: !!binary x\n", "kind: .nan\nspec: 0x\n",
		"\r\u0085\u2028\u2029\"", "kind: a\r\n---\rkind: \"", "\xff\xfe\x85\x00\x85\x00\"\x00",
		"\xfe\xff\x00\n\x00-\x00-\x00-", deniesA + "---\n" + tokens, deniesA + "a: [", tokens + "spec: x\n",
		"kind: RequestAuthentication\nmetadata: {namespace: X}\nspec: {jwtRules: [{}], selector: 5}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		r := &reader{file: "f.yaml", namespace: "ns", validate: validateObject}
		content = inUTF8(content)
		lines := len(regexp.MustCompile("\r\n|[\n\r\u0085\u2028\u2029]").Split(string(content), -1))
		parts, first := split(content)
		for i, part := range parts {
			d := r.read(part, first[i])
			for _, p := range d.problems {
				if p.File != "f.yaml" || p.Line < 1 || p.Line > lines+1 || p.Message == "" ||
					p.Severity == "" {
					t.Errorf("of %d lines: %+v", lines, p)
				}
			}
			for _, o := range d.objects {
				if o.Line < 1 || o.Line > lines || o.Name == "" || o.Namespace == "" ||
					o.Spec == nil {
					t.Errorf("%+v", o)
				}
			}
		}
	})
}

func TestReload_UTF16(t *testing.T) {
	text := entry("a", "a.test") + "---\n" + entry("b", "b.test")
	for _, test := range []struct{ mark, before, after string }{{"\xff\xfe", "", "\x00"},
		{"\xfe\xff", "\x00", ""}} {
		content := test.mark
		for _, c := range []byte(text) {
			content += test.before + string(c) + test.after
		}
		if got := inUTF8([]byte(content)); string(got) != text {
			t.Errorf("%q became %q", content, got)
		}
	}
}
