package model_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/model"
)

func TestCipherSuites(t *testing.T) {
	for name, want := range map[string]bool{
		"": true, "ALL": true, "ECDHE-RSA-AES128-GCM-SHA256": true, "AES256-SHA": true,
		"[ECDHE-RSA-AES128-GCM-SHA256|AES256-SHA]": true, "-AES256-SHA": true, "!NONE": true,
		"all": false, "AES512": false, "aes": false, "zero": false, "Z": false, "A": false,
		"0": false, "9": false, "3DES": false, "{x": true, "@x": true, "/x": true, ":x": true,
	} {
		if got := model.IsCipherSuite(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
	if diff := cmp.Diff([]string{"AES256-SHA", "ALL"},
		model.CipherSuites([]string{"AES256-SHA", "none", "ALL", "AES256-SHA"})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"P-256"},
		model.Curves([]string{"P-224", "P-256", "P-256"})); diff != "" {
		t.Error(diff)
	}
}

func TestNode(t *testing.T) {
	for key, want := range map[string]bool{"NAME": true, "INSTANCE_IPS": true, "LABELS": false} {
		if got := model.OfOneProxy(key); got != want {
			t.Errorf("%s: %t", key, got)
		}
	}
	for text, want := range map[string]model.Locality{
		"": {}, "eu": {Region: "eu"}, "eu/a": {Region: "eu", Zone: "a"},
		"eu/a/x": {Region: "eu", Zone: "a", Subzone: "x"},
		"eu//x":  {Region: "eu", Subzone: "x"},
	} {
		got := model.ParseLocality(text)
		if got != want || got.String() != text {
			t.Errorf("%q: %+v, %q", text, got, got)
		}
	}
	for mode, want := range map[model.Interception]bool{model.NoInterception: false,
		model.Redirect: true, model.Tproxy: true} {
		if got := (model.Node{Interception: mode}).Captured(); got != want {
			t.Errorf("%q: %t", mode, got)
		}
	}
	node := model.Node{Labels: map[string]string{"a": "b", model.NetworkLabel: "of the label"},
		Locality: model.Locality{Region: "eu"}, Network: "of the node"}
	for label, want := range map[string]string{"a": "b", "none": "",
		model.NetworkLabel: "of the label", model.TopologyLabels[0]: "eu"} {
		if got := node.Label(label); got != want {
			t.Errorf("%s: %q", label, got)
		}
	}
}
