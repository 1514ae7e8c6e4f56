package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStatusHTML_LargeBundleIsOneRow(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	authority := func(days int) loadedCertificate {
		return loadedCertificate{Path: "<inline>", Expires: now.AddDate(0, 0, days)}
	}
	var loaded loadedCertificates
	loaded.Certificates = make([]struct {
		Chain []loadedCertificate `json:"cert_chain"`
		CA    []loadedCertificate `json:"ca_cert"`
	}, 3)
	loaded.Certificates[0].CA = []loadedCertificate{
		authority(-1), authority(1), authority(20), authority(30), authority(40)}
	loaded.Certificates[1].Chain = []loadedCertificate{{Path: "/etc/own.crt",
		From: now.AddDate(-1, 0, 0), Expires: now.AddDate(1, 0, 0)},
		{Path: "<inline>", Serial: "0a1", From: now.AddDate(-1, 0, 0), Expires: now.AddDate(0, 0, 13)}}
	loaded.Certificates[2].CA = []loadedCertificate{authority(-2)}
	want := []htmlCertificate{
		{Path: "/etc/own.crt", Names: "-", Until: "2027-01-01 00:00:00 UTC", Class: "good"},
		{Path: "/etc/tls/www.crt", Names: "-", Until: "2026-01-14 00:00:00 UTC (in 13d)",
			Class: "warn"},
		{Path: "sent by Outrider", Names: "5 authorities", Until: "-", Class: "good"},
		{Path: "sent by Outrider", Names: "-", Until: "2025-12-30 00:00:00 UTC (expired)",
			Class: "bad"},
	}
	if diff := cmp.Diff(want, loaded.rows(map[string]string{"a1": "/etc/tls/www.crt"}, now)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
