package cloud

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// services is a fake of the clouds' metadata services, according to their manuals.
func services() http.Handler {
	mux := http.NewServeMux()
	answer := func(pattern, header, value, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(header) != value {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = w.Write([]byte(body))
		})
	}
	const token = "X-aws-ec2-metadata-token"
	answer("PUT /latest/api/token", token+"-ttl-seconds", "60", "t")
	answer("GET /latest/dynamic/instance-identity/document", token, "t",
		`{"region": "eu-west-1", "availabilityZone": "eu-west-1b", "instanceId": "i-1"}`)
	answer("GET /latest/meta-data/tags/instance", token, "t", "team\nName\n")
	answer("GET /latest/meta-data/tags/instance/team", token, "t", "shop")
	answer("GET /latest/meta-data/tags/instance/Name", token, "t", "no label")
	answer("GET /computeMetadata/v1/instance/zone", "Metadata-Flavor", "Google",
		"projects/1234/zones/europe-west4-a")
	answer("GET /metadata/instance/compute", "Metadata", "true",
		`{"location": "westeurope", "zone": "2", "tagsList": [{"name": "team", "value": "shop"},
			{"name": "a b", "value": "x"}]}`)
	return mux
}

func TestRead(t *testing.T) {
	server := httptest.NewServer(services())
	defer server.Close()
	service := &MetadataService{URL: server.URL}
	shop := map[string]string{"team": "shop"}
	for cloud, want := range map[string]Metadata{
		"aws":   {"eu-west-1/eu-west-1b", shop},
		"gcp":   {"europe-west4/europe-west4-a", nil},
		"azure": {"westeurope/2", shop},
	} {
		got, err := service.Read(t.Context(), cloud)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", cloud, got, err, want)
		}
	}
}

func TestRead_RetainsTheFactsButNoError(t *testing.T) {
	server := httptest.NewServer(services())
	service := &MetadataService{URL: server.URL + "/none"}
	_, err := service.Read(t.Context(), "gcp")
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	service.URL = server.URL
	first, err := service.Read(t.Context(), "gcp")
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if again, err := service.Read(t.Context(), "gcp"); err != nil || !cmp.Equal(first, again) {
		t.Errorf("%+v, %v", again, err)
	}
}
