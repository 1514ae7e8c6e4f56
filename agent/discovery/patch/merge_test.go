package patch

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"
)

func TestMerge(t *testing.T) {
	for _, test := range []struct {
		name, dst, src, want string
		replaceLists         bool
	}{
		{"single fields", `{"name": "a", "altStatName": "b"}`, `{"name": "c"}`,
			`{"name": "c", "altStatName": "b"}`, false},
		{"durations are replaced", `{"connectTimeout": "1.5s"}`, `{"connectTimeout": "2s"}`,
			`{"connectTimeout": "2s"}`, false},
		{"so are wrapped values, false ones too",
			`{"commonLbConfig": {"localityWeightedLbConfig": {}}, "trackClusterStats": {"timeoutBudgets": true}, "outlierDetection": {"maxEjectionPercent": 5}}`,
			`{"outlierDetection": {"maxEjectionPercent": 0}}`,
			`{"commonLbConfig": {"localityWeightedLbConfig": {}}, "trackClusterStats": {"timeoutBudgets": true}, "outlierDetection": {"maxEjectionPercent": 0}}`, false},
		{"lists get longer", `{"transportSocketMatches": [{"name": "a"}]}`,
			`{"transportSocketMatches": [{"name": "b"}]}`,
			`{"transportSocketMatches": [{"name": "a"}, {"name": "b"}]}`, false},
		{"or are replaced", `{"transportSocketMatches": [{"name": "a"}]}`,
			`{"transportSocketMatches": [{"name": "b"}]}`,
			`{"transportSocketMatches": [{"name": "b"}]}`, true},
		{"entries of maps are replaced",
			`{"metadata": {"filterMetadata": {"a": {"x": 1}, "b": {}}}}`,
			`{"metadata": {"filterMetadata": {"a": {"y": 2}}}}`,
			`{"metadata": {"filterMetadata": {"a": {"y": 2}, "b": {}}}}`, false},
		{"one of several kinds", `{"type": "STATIC"}`, `{"clusterType": {"name": "x"}}`,
			`{"clusterType": {"name": "x"}}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var dst, src, want clusterv3.Cluster
			read(t, test.dst, &dst)
			read(t, test.src, &src)
			read(t, test.want, &want)
			merge(dst.ProtoReflect(), src.ProtoReflect(), test.replaceLists)
			if diff := cmp.Diff(&want, &dst, protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMerge_UnlinkedTypes(t *testing.T) {
	for _, test := range []struct {
		dst, src, want string
		replaceLists   bool
	}{
		{`{"max_age": "1s", "other": {"a": 1}}`, `{"maxAge": "2s", "other": {"b": 2}}`,
			`{"max_age": "2s", "other": {"a": 1, "b": 2}}`, false},
		{`{"list": [1]}`, `{"list": [2]}`, `{"list": [1, 2]}`, false},
		{`{"list": [1]}`, `{"list": [2]}`, `{"list": [2]}`, true},
		{`{"a": 1}`, `{"a": {"b": 1}}`, `{"a": {"b": 1}}`, false},
	} {
		var dst, src, want structpb.Struct
		read(t, test.dst, &dst)
		read(t, test.src, &src)
		read(t, test.want, &want)
		mergeStruct(&dst, &src, test.replaceLists)
		if diff := cmp.Diff(&want, &dst, protocmp.Transform()); diff != "" {
			t.Errorf("%s + %s (-want +got):\n%s", test.dst, test.src, diff)
		}
	}
}

func read(t *testing.T, text string, into proto.Message) {
	t.Helper()
	if err := protojson.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

// FuzzBuild builds patches from arbitrary values: every accepted value must be encodable.
func FuzzBuild(f *testing.F) {
	for _, seed := range []string{`{"name": "a", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua", "a": [1, {"@type": 1}]}}`,
		`{"typedConfig": {"@type": "type.googleapis.com/udpa.type.v1.TypedStruct", "typeUrl": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router", "value": {"suppress_envoy_headers": true}}}`,
		`{"typed_config": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"}}`, `{"@type": ""}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var value structpb.Struct
		if protojson.Unmarshal([]byte(text), &value) != nil {
			return
		}
		for to := range networking.EnvoyFilter_ApplyTo_name {
			message, _, _ := build(networking.EnvoyFilter_ApplyTo(to), &value, "value")
			if message == nil {
				continue
			}
			if _, err := protojson.Marshal(message); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	})
}
