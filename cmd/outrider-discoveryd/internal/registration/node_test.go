package registration

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/util/validation"
)

const goodNode = `{"id": "sidecar~10.0.0.1~a~b", "metadata": {"NAMESPACE": "vm",
	"AUTO_REGISTER_GROUP": "web"}}`

func TestApplicant_IsReadAsByIstiod(t *testing.T) {
	long := strings.Repeat("a", 250)
	for _, c := range []struct {
		change []string // pairs of a text in goodNode and its replacement
		want   string   // name and address of the resulting entry, or an error
	}{
		{nil, "vm/web-10.0.0.1 10.0.0.1"},
		{[]string{`"web"`, `""`}, ""},
		{[]string{`"web"`, `7`}, ""},
		{[]string{`"vm"`, `""`}, "is not a valid name of a namespace"},
		{[]string{`"vm"`, `"a/b"`}, "is not a valid name of a namespace"},
		{[]string{`"web"`, `"../x"`}, "is not a valid name of a WorkloadGroup"},
		{[]string{`"web"`, `"web", "NETWORK": "n1"`}, "vm/web-10.0.0.1-n1 10.0.0.1"},
		{[]string{`"web"`, `"web", "NETWORK": "N_1"`}, "is not a valid name of a WorkloadEntry"},
		{[]string{`"web"`, `"web", "NETWORK": "` + long[:70] + `"`}, "is not a valid value of a label"},
		{[]string{`"web"`, `"web", "INSTANCE_IPS": "10.0.0.2,10.0.0.3"`}, "vm/web-10.0.0.2 10.0.0.2"},
		{[]string{`"web"`, `"web", "INSTANCE_IPS": "10.0.0.2,x"`}, "vm/web-10.0.0.1 10.0.0.1"},
		{[]string{`"web"`, `"web", "INSTANCE_IPS": "fd00::2"`}, "vm/web-fd00--2 fd00::2"},
		{[]string{`"web"`, `"web", "INSTANCE_IPS": "fe80::1%eth0"`, "10.0.0.1", ""},
			"has an IP address"},
		{[]string{`"web"`, `"` + long + `"`},
			"vm/" + long[:253-len("-10.0.0.1")] + "-10.0.0.1 10.0.0.1"},
		{[]string{`"web"`, `"web", "LABELS": {"a": 1}`}, "is not a string"},
		{[]string{`"web"`, `"web", "LABELS": {"a b": "c"}`}, "is not a valid label"},
		{[]string{`"web"`, `"web", "LABELS": {"a": "` + long + `"}`}, "is not a valid label"},
		{[]string{`"metadata"`, `"locality": {"region": "` + long + long + `"}, "metadata"`},
			"locality is longer"},
	} {
		node := &corev3.Node{}
		text := strings.NewReplacer(c.change...).Replace(goodNode)
		if err := protojson.Unmarshal([]byte(text), node); err != nil {
			t.Fatal(err)
		}
		got := ""
		if a, err := newApplicant(node); err != nil {
			got = err.Error()
		} else if a != nil {
			got = a.key.String() + " " + a.address
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %s, want %s", text, got, c.want)
		}
	}
}

// FuzzApplicant checks that no node results in an entry that Kubernetes would refuse.
func FuzzApplicant(f *testing.F) {
	f.Add("web", "vm", "10.0.0.1", "n1", "app", "web", "eu")
	f.Add(strings.Repeat("a", 300), "vm", "fd00::1", "", "a/b", "-", "")
	f.Fuzz(func(t *testing.T, group, namespace, ips, network, label, value, region string) {
		node := &corev3.Node{}
		if err := protojson.Unmarshal([]byte(goodNode), node); err != nil {
			t.Fatal(err)
		}
		fields := node.Metadata.Fields
		for key, text := range map[string]string{"AUTO_REGISTER_GROUP": group, "NAMESPACE": namespace,
			"INSTANCE_IPS": ips, "NETWORK": network} {
			fields[key] = structpb.NewStringValue(text)
		}
		fields["LABELS"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			label: structpb.NewStringValue(value)}})
		node.Locality = &corev3.Locality{Region: region}
		a, err := newApplicant(node)
		if a == nil || err != nil {
			return
		}
		w := a.workload(&WorkloadGroup{Key: a.group, Spec: &networking.WorkloadGroup{}})
		problems := slices.Concat(validation.IsDNS1123Label(w.Namespace),
			validation.IsDNS1123Subdomain(w.Name))
		for key, text := range w.Spec.Labels {
			problems = slices.Concat(problems, validation.IsQualifiedName(key),
				validation.IsValidLabelValue(text))
		}
		if len(problems) > 0 || len(w.Spec.Locality) > maxLocality || !isAddress(w.Spec.Address) {
			t.Errorf("%+v: %q", w, problems)
		}
	})
}
