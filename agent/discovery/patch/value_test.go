package patch

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// TestBuild_AcceptsWhatProtobufDoes decodes values of clusters, and compares the results with those
// of protobuf's own decoder.
func TestBuild_AcceptsWhatProtobufDoes(t *testing.T) {
	const payload = `"health_checks": [{"tcp_health_check": {"send": {"binary": "`
	for _, value := range []string{
		payload + `YWI="}}}]`,
		payload + `YWI"}}}]`,
		payload + `-_-_"}}}]`,
		payload + `-_8"}}}]`,
		payload + `-_+_"}}}]`,
		payload + `YWI=="}}}]`,
		payload + `%"}}}]`,

		`"lb_policy": 1`,
		`"lb_policy": 99`,
		`"lb_policy": 3e9`,
		`"lb_policy": 4294967297`,
		`"lb_policy": 1.5`,
		`"lb_policy": "1"`,

		`"max_requests_per_connection": "5"`,
		`"max_requests_per_connection": "1e3"`,
		`"max_requests_per_connection": "5.0"`,
		`"max_requests_per_connection": "5."`,
		`"max_requests_per_connection": " 5"`,
		`"max_requests_per_connection": "+5"`,
		`"max_requests_per_connection": "010"`,
		`"max_requests_per_connection": "0x10"`,
		`"max_requests_per_connection": "1_0"`,
		`"max_requests_per_connection": ".inf"`,
		`"max_requests_per_connection": "NaN"`,

		`"common_lb_config": {"healthy_panic_threshold": {"value": "Infinity"}}`,
		`"common_lb_config": {"healthy_panic_threshold": {"value": "-Infinity"}}`,
		`"common_lb_config": {"healthy_panic_threshold": {"value": "NaN"}}`,
		`"common_lb_config": {"healthy_panic_threshold": {"value": "+Infinity"}}`,
		`"common_lb_config": {"healthy_panic_threshold": {"value": ".inf"}}`,

		`"connect_timeout": "1s", "connectTimeout": "2s"`,
		`"health_checks": [{}], "healthChecks": [{}]`,
		`"typed_extension_protocol_options": {"a": null}`,
		`"metadata": {"filter_metadata": {"a": null}}`,
		`"metadata": {"filter_metadata": {"a": {"b": null}}}`,
		`"health_checks": null`,
		`"health_checks": [null]`,
	} {
		value := `{"name": "a", ` + value + `}`
		var in structpb.Struct
		read(t, value, &in)
		got, findings, _ := build(networking.EnvoyFilter_CLUSTER, &in, "value")
		want := newValue(networking.EnvoyFilter_CLUSTER)
		err := protojson.Unmarshal([]byte(value), want)
		refused := slices.ContainsFunc(findings, func(f object.Finding) bool {
			return f.Severity == condition.Error
		})
		if refused != (err != nil) || got == nil && !refused {
			t.Errorf("%s: %+v, protobuf: %v", value, findings, err)
		}
		if got != nil && err == nil {
			if diff := cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", value, diff)
			}
		}
	}
}
